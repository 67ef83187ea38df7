"""The sections of everything around runs: sessions, messages, plugins, cron, channels, gateway."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from clawmode.models.base import ThinkingLevel
from clawmode.records import Entries, Issue, Maybe, Named, Text, join, wrong
from clawmode.sections import Section, option, unused

DAY_MS = 86_400_000
DAY_SECONDS = 86_400

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "interrupt"]
Drop: TypeAlias = Literal["summarize", "old", "new"]

Milliseconds: TypeAlias = Annotated[int, Field(ge=0, le=60_000)]

ADDRESS = "an address that begins with http:// or https://"


# ---- The database of programs that wait ----


class PostgresSection(Section):
    """The section `postgres`: how the database of `state` is used."""

    pool_size: int = option("The maximum number of connections for statements.", 8, low=1, high=100)
    listen: bool = option(
        "Whether notifications are received; false behind PgBouncer in transaction mode.", True
    )
    migrate: bool = option("Whether a start creates and upgrades the tables.", True)
    name: Maybe[Text] = option("The name of this node; by default machine and process id.")
    key_file: Maybe[Text] = option(
        "A file with the snapshot keys; by default, `CLAWMODE_SNAPSHOT_KEY` contains them."
    )


# ---- Sessions, messages, diagnostics ----


class WriteLock(Section):
    """The section `writeLock`: the lock of a session's transcript."""

    IGNORED: ClassVar = unused("staleMs", "maxHoldMs")

    acquire_timeout_ms: int = option(
        "How long a writer waits for the lock before it reports that the session is busy.",
        60_000,
        low=1,
        high=3_600_000,
    )


class Session(Section):
    """The section `session` of the configuration."""

    IGNORED: ClassVar = unused(
        *("scope", "dmScope", "identityLinks", "reset", "resetByType", "resetByChannel"),
        *("resetTriggers", "idleMinutes", "store", "mainKey", "typingMode", "agentToAgent"),
        *("sendPolicy", "maintenance", "threadBindings", "parentForkMaxTokens"),
    )

    write_lock: WriteLock = option("The lock of a transcript.", WriteLock)


class Queue(Section):
    """The section `queue`: messages that arrive during a run."""

    mode: QueueMode = option("How a message that arrives during a run is handled.", "steer")
    cap: int = option("The maximum number of waiting messages per session.", 20, low=1, high=1000)
    drop: Drop = option("How messages over the cap are handled.", "summarize")
    debounce_ms: int = option("How long to wait for further messages.", 500, low=0, high=60_000)
    by_channel: Named[QueueMode] = option("The mode of single channels.", dict)
    debounce_ms_by_channel: Named[Milliseconds] = option(
        "The waiting time of single channels.", dict
    )


class Messages(Section):
    """The section `messages` of the configuration."""

    IGNORED: ClassVar = unused(
        *("messagePrefix", "responsePrefix", "groupChat", "inbound", "ackReaction"),
        *("ackReactionScope", "removeAckAfterReply", "statusReactions", "tts", "visibleReplies"),
    )

    queue: Queue = option("Messages that arrive during a run.", Queue)


class Diagnostics(Section):
    """The section `diagnostics`: detection of sessions without progress."""

    IGNORED: ClassVar = unused(
        "flags", "otel", "cacheTrace", "stuckSessionWarnMaxAgeMs", "memoryPressure"
    )

    enabled: bool = option("Whether sessions are monitored.", True)
    stuck_session_warn_ms: int = option(
        "Time without progress after which a warning is logged.", 120_000, low=1000, high=DAY_MS
    )
    stuck_session_abort_ms: Maybe[int] = option(
        "Time without progress after which the run is aborted; by default three times "
        "`stuckSessionWarnMs`, at least 5 minutes.",
        low=1000,
        high=7 * DAY_MS,
    )

    def abort_ms(self) -> int:
        """Returns the time without progress after which a run is aborted."""
        return self.stuck_session_abort_ms or max(300_000, 3 * self.stuck_session_warn_ms)


# ---- Skills and plugins ----


class SkillEntry(Section):
    """The settings of one skill."""

    IGNORED: ClassVar = unused("apiKey", "config")

    enabled: bool = option("Whether models see the skill.", True)
    env: Named[Text] = option("Environment variables for commands of runs.", dict, secret=True)


class SkillFolders(Section):
    """The section `skills.load`: folders with skills."""

    IGNORED: ClassVar = unused("watch", "watchDebounceMs")

    extra_dirs: Entries[Text] = option("Folders in addition to those of workspace and state.", ())


class Skills(Section):
    """The section `skills` of the configuration."""

    IGNORED: ClassVar = unused("allowBundled", "install", "limits")

    entries: Named[SkillEntry] = option("Skills by name.", dict)
    load: SkillFolders = option("Folders with skills.", SkillFolders)


class PluginEntry(Section):
    """The settings of one plugin."""

    IGNORED: ClassVar = unused("hooks", "env", "apiKey")

    enabled: bool = option("Whether the plugin is loaded.", True)
    config: dict[str, Any] = option(
        "Settings of the plugin, as its manifest describes them.", dict, secret=True
    )


class PluginFolders(Section):
    """The section `plugins.load`: folders with plugins."""

    paths: Entries[Text] = option("Folders of plugins, or folders that contain such folders.", ())


class PluginSection(Section):
    """The section `plugins` of the configuration."""

    IGNORED: ClassVar = unused("allow", "deny", "slots", "installs")

    enabled: bool = option("Whether any plugins are loaded.", True)
    entries: Named[PluginEntry] = option("Plugins by id.", dict)
    load: PluginFolders = option("Folders with plugins, besides installed packages.", PluginFolders)


# ---- Operator hooks ----


class InternalHook(Section):
    """One script of the operator, and the events that start it."""

    enabled: bool = option("Whether the script runs.", True)
    events: Entries[Text] = option(
        "Events: `agent:bootstrap`, `command:new`, `session:start`, … or all of a kind: `command`.",
        required=True,
        expected="a list of events",
    )
    command: Maybe[Entries[Text]] = option(
        "A program that reads and writes JSON, and its arguments.", secret=True
    )
    file: Maybe[Text] = option("Instead: a Python file with a function `handle(event)`.")
    env: Named[Text] = option("Environment variables for the program.", dict, secret=True)
    timeout_ms: int = option("The time limit of one call.", 30_000, low=1, high=600_000)

    def check(self, path: str) -> Iterator[Issue]:
        if bool(self.command) is bool(self.file):
            found = "both" if self.command else "none"
            yield wrong(path, "one of command, file", found)
        if not self.events:
            yield wrong(join(path, "events"), "at least one event", "none")


class InternalHooks(Section):
    """The section `hooks.internal` of the configuration."""

    IGNORED: ClassVar = unused("handlers", "load", "installs")

    enabled: bool = option("Whether any of the scripts run.", True)
    entries: Named[InternalHook] = option("Scripts by a name that you choose.", dict)


class HookSection(Section):
    """The section `hooks` of the configuration."""

    IGNORED: ClassVar = unused(
        *("enabled", "path", "token", "presets", "mappings", "transformsDir", "gmail"),
        *("maxBodyBytes", "defaultSessionKey", "allowRequestSessionKey", "allowedAgentIds"),
    )

    internal: InternalHooks = option(
        "Scripts that events of commands, sessions and runs start.", InternalHooks
    )


# ---- Installation policy ----


class InstallPolicy(Section):
    """The section `installPolicy`. It also applies if hooks allow an installation."""

    default: Literal["allow", "deny"] = option("The decision if no rule matches.", "allow")
    allow: Entries[Text] = option(
        "What may be installed: `plugin:<id>`, `skill:<name>`, `from:<source>`, with `*`.", ()
    )
    deny: Entries[Text] = option("What may not be installed. A deny rule always wins.", ())
    command: Maybe[Entries[Text]] = option(
        "A program that decides: it reads JSON about the package, and writes `{allow, reason}`.",
        secret=True,
    )
    timeout_ms: int = option("The time limit of the program.", 30_000, low=1, high=600_000)


class SecuritySection(Section):
    """The section `security` of the configuration."""

    IGNORED: ClassVar = unused("audit")

    install_policy: InstallPolicy = option("What may be installed.", InstallPolicy)


# ---- Scheduled runs ----


class CronJob(Section):
    """A scheduled run, in `cron.jobs`."""

    id: Text = option("The id of the job.", required=True, expected="the name of a job")
    enabled: bool = option("Whether the job runs.", True)
    cron: Maybe[Text] = option("Five fields: minute, hour, day, month, weekday.")
    every: Maybe[Text] = option("Instead: an interval such as `30s`, `15m`, `2h`, `1d`.")
    at: Maybe[Text] = option("Instead: a single time such as `2027-01-31T08:00`.")
    tz: Maybe[Text] = option(
        "The time zone of `cron` and `at`, such as `Europe/Berlin`; by default UTC."
    )
    message: Text = option("The message to the agent.", required=True, expected="a message")
    agent: Maybe[Text] = option("The id of the agent.")
    model: Maybe[Text] = option("`provider/model`, instead of the agent's.")
    thinking: Maybe[ThinkingLevel] = option("The thinking level, instead of the agent's.")
    timeout_seconds: Maybe[int] = option("The time limit of a run.", low=1, high=DAY_SECONDS)
    channel: Maybe[Text] = option("The channel that receives the reply.")
    target: Maybe[Text] = option("The recipient on that channel.")


class CronSection(Section):
    """The section `cron` of the configuration."""

    IGNORED: ClassVar = unused("store", "webhook", "sessionRetention", "runLog")

    enabled: bool = option("Whether the gateway runs jobs.", True)
    max_concurrent_runs: int = option("The number of concurrent jobs.", 1, low=1, high=100)
    cleanup_seconds: int = option(
        "The time that a run gets to stop after its time limit.", 10, low=1, high=600
    )
    jobs: Entries[CronJob] = option("Jobs, in addition to those added by command.", ())


# ---- Channels ----


class ChannelEntry(Section):
    """A channel: messages are exchanged with a chat service over signed HTTP requests."""

    type: Literal["webhook"] = option("The type of the channel.", "webhook")
    enabled: bool = option("Whether the channel is used.", True)
    secret: Text = option(
        "The key that signs requests in both directions; better `${VARIABLE}`.",
        secret=True,
        required=True,
    )
    previous_secret: Maybe[Text] = option(
        "A second key, which is still accepted while the key is changed.", secret=True
    )
    url: Maybe[Text] = option(
        "The address that messages are sent to.", secret=True, expected=ADDRESS
    )
    agent: Maybe[Text] = option("The agent that replies.")
    allow_from: Entries[Text] = option(
        "Senders whose messages are accepted; `*` means all.", ("*",)
    )
    operators: Entries[Text] = option("Senders that may answer approval requests.", ())
    block_streaming: bool = option("Whether replies are sent in parts.", False)
    edits: bool = option("Whether the chat service can edit a sent message.", False)
    timeout_ms: int = option("The time limit of one request.", 10_000, low=100, high=120_000)

    def check(self, path: str) -> Iterator[Issue]:
        if self.url and not self.url.lower().startswith(("http://", "https://")):
            yield wrong(join(path, "url"), ADDRESS, "another string")


# ---- The gateway ----


class GatewayAuth(Section):
    """The section `gateway.auth` of the configuration."""

    IGNORED: ClassVar = unused("mode", "password", "allowTailscale")

    token: Maybe[Text] = option(
        "A token in addition to those created by command; better `${VARIABLE}`.", secret=True
    )


class GatewayTls(Section):
    """The section `gateway.tls` of the configuration."""

    cert: Text = option("The file with the certificate.", required=True)
    key: Text = option("The file with the private key.", required=True)


class GatewaySection(Section):
    """The section `gateway` of the configuration."""

    IGNORED: ClassVar = unused(
        *("mode", "customBindHost", "controlUi", "tailscale", "remote", "trustedProxies"),
        *("channelHealthCheckMinutes", "http", "nodes", "push"),
    )

    port: int = option("The port of the gateway.", 18_790, low=0, high=65_535)
    bind: Text = option("The address that the gateway listens on.", "127.0.0.1")
    auth: GatewayAuth = option("Authentication of clients.", GatewayAuth)
    tls: Maybe[GatewayTls] = option("The certificate of the gateway.")
    allowed_origins: Entries[Text] = option("Origins of web pages that may connect.", ())
    allowed_hosts: Entries[Text] = option("Host names under which clients reach it.", ())
    max_clients: int = option(
        "The maximum number of connected clients.", 1_000, low=1, high=100_000
    )
    shutdown_seconds: int = option(
        "The time that runs get to finish when the gateway stops.", 20, low=0, high=3_600
    )
