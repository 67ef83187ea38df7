"""The sections about what happens around runs: messages, extensions, schedules, channels."""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from clawmode.code_mode.config import Setting, join, wrong
from clawmode.config.reader import Section, Told, option, unused
from clawmode.models.base import ThinkingLevel
from clawmode.types import JsonObject

DAY_MS = 86_400_000
DAY_SECONDS = 86_400

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "interrupt"]
Drop: TypeAlias = Literal["summarize", "old", "new"]

ADDRESS = "an address that begins with http:// or https://"


# ---- Sessions, messages, diagnostics ----


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLock(Section):
    """The lock on a session's transcript."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("staleMs", "maxHoldMs")

    acquire_timeout_ms: int = option(
        "How long a writer waits before the session is busy.", 60_000, low=1, high=3_600_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Section):
    """Conversations and their transcripts."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("scope", "dmScope", "identityLinks", "reset", "resetByType", "resetByChannel"),
        *("resetTriggers", "idleMinutes", "store", "mainKey", "typingMode", "agentToAgent"),
        *("sendPolicy", "maintenance", "threadBindings", "parentForkMaxTokens"),
    )

    write_lock: WriteLock = option("The lock on a transcript.", WriteLock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(Section):
    """What becomes of a message that comes while a run is under way."""

    mode: QueueMode = option("What is done with it.", "steer")
    cap: int = option("Messages that may wait in a session.", 20, low=1, high=1000)
    drop: Drop = option("What becomes of those over the cap.", "summarize")
    debounce_ms: int = option("How long to wait for more of them.", 500, low=0, high=60_000)
    by_channel: dict[str, QueueMode] = option("The mode for a channel.", dict)
    debounce_ms_by_channel: dict[str, int] = option(
        "The wait for a channel.", dict, low=0, high=60_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages(Section):
    """Messages on their way in."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("messagePrefix", "responsePrefix", "groupChat", "inbound", "ackReaction"),
        *("ackReactionScope", "removeAckAfterReply", "statusReactions", "tts", "visibleReplies"),
    )

    queue: Queue = option("Messages that come while a run is under way.", Queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics(Section):
    """When a session is said to be stuck."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        "flags", "otel", "cacheTrace", "stuckSessionWarnMaxAgeMs", "memoryPressure"
    )

    enabled: bool = option("Whether sessions are watched.", True)
    stuck_session_warn_ms: int = option(
        "Silence after which a session is worth a line.", 120_000, low=1000, high=DAY_MS
    )
    stuck_session_abort_ms: int | None = option(
        "Silence after which its run is aborted; else 3 times as long, at least 5 minutes.",
        low=1000,
        high=7 * DAY_MS,
    )

    def abort_ms(self) -> int:
        """Silence after which a run is aborted."""
        return self.stuck_session_abort_ms or max(300_000, 3 * self.stuck_session_warn_ms)


# ---- Skills and plugins ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry(Section):
    """A skill."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("apiKey", "config")

    enabled: bool = option("Whether it is told of.", True)
    env: dict[str, str] = option("Variables for the commands of runs.", dict, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFolders(Section):
    """Where skills are."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("watch", "watchDebounceMs")

    extra_dirs: tuple[str, ...] = option("Folders beside those of workspace and state.", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Skills(Section):
    """What models can be told how to do."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("allowBundled", "install", "limits")

    entries: dict[str, SkillEntry] = option("Skills by name.", dict)
    load: SkillFolders = option("Where they are.", SkillFolders)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry(Section):
    """A plugin."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("hooks", "env", "apiKey")

    enabled: bool = option("Whether it is loaded.", True)
    config: JsonObject = option("Its settings, as its manifest describes them.", dict, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFolders(Section):
    """Where plugins are."""

    paths: tuple[str, ...] = option("Folders that are plugins, or that hold some.", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSection(Section):
    """What extends the agent."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("allow", "deny", "slots", "installs")

    enabled: bool = option("Whether any are loaded.", True)
    entries: dict[str, PluginEntry] = option("Plugins by id.", dict)
    load: PluginFolders = option("Where they are, beside installed packages.", PluginFolders)


# ---- What operators hook in ----


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalHook(Section):
    """A script of the operator's."""

    enabled: bool = option("Whether it runs.", True)
    events: tuple[str, ...] = option(
        "When: `agent:bootstrap`, `command:new`, `session:start`, … or all of a kind: `command`.",
        (),
        required=True,
        expected="a list of events",
    )
    command: tuple[str, ...] | None = option(
        "A program and its arguments: reads and writes JSON.", secret=True
    )
    file: str | None = option("A Python file with a function `handle(event)`, instead of that.")
    env: dict[str, str] = option("Variables for the program.", dict, secret=True)
    timeout_ms: int = option("How long it may take.", 30_000, low=1, high=600_000)

    def check(self, path: str) -> Iterator[Told]:
        """There is one thing to run, and a time to run it."""
        if bool(self.command) is bool(self.file):
            found = "both" if self.command else "none"
            yield wrong(Setting(path, None), "one of command, file", found=found)
        if not self.events:
            yield wrong(Setting(join(path, "events"), None), "at least one event", found="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalHooks(Section):
    """Scripts of the operator's."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("handlers", "load", "installs")

    enabled: bool = option("Whether any of them run.", True)
    entries: dict[str, InternalHook] = option("By a name of yours.", dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSection(Section):
    """What operators hook in."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("enabled", "path", "token", "presets", "mappings", "transformsDir", "gmail"),
        *("maxBodyBytes", "defaultSessionKey", "allowRequestSessionKey", "allowedAgentIds"),
    )

    internal: InternalHooks = option(
        "Scripts for commands and for the life of runs.", InternalHooks
    )


# ---- What may be installed ----


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPolicy(Section):
    """What may be installed from the command line, whatever hooks say."""

    default: Literal["allow", "deny"] = option("What holds where no rule matches.", "allow")
    allow: tuple[str, ...] = option(
        "What may be installed: `plugin:<id>`, `skill:<name>`, `from:<source>`, with `*`.", ()
    )
    deny: tuple[str, ...] = option("What may not, whatever else is said.", ())
    command: tuple[str, ...] | None = option(
        "A program that decides: reads JSON about what is staged, writes `{allow, reason}`.",
        secret=True,
    )
    timeout_ms: int = option("How long the program may take.", 30_000, low=1, high=600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySection(Section):
    """What operators insist on."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("audit")

    install_policy: InstallPolicy = option("What may be installed.", InstallPolicy)


# ---- Runs at set times ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob(Section):
    """A run at set times."""

    id: str = option("Its name.", "", required=True, expected="the name of a job")
    enabled: bool = option("Whether it runs.", True)
    cron: str | None = option("When, as five fields: minute, hour, day, month, weekday.")
    every: str | None = option("Or how often: `30s`, `15m`, `2h`, `1d`.")
    at: str | None = option("Or once: a time such as `2027-01-31T08:00`.")
    tz: str | None = option("The time zone of `cron` and `at`, such as `Europe/Berlin`; else UTC.")
    message: str = option("What is said to the agent.", "", required=True, expected="a message")
    agent: str | None = option("Which agent.")
    model: str | None = option("`provider/model`, instead of the agent's.")
    thinking: ThinkingLevel | None = option("Instead of the agent's.")
    timeout_seconds: int | None = option("How long a turn may take.", low=1, high=DAY_SECONDS)
    channel: str | None = option("The channel that the reply goes to.")
    target: str | None = option("To whom, on that channel.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSection(Section):
    """Runs at set times."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("store", "webhook", "sessionRetention", "runLog")

    enabled: bool = option("Whether jobs are run by the gateway.", True)
    max_concurrent_runs: int = option("How many at the same time.", 1, low=1, high=100)
    cleanup_seconds: int = option(
        "How long a turn that ran out of time may take to end.", 10, low=1, high=600
    )
    jobs: tuple[CronJob, ...] = option("Jobs, beside those that were added by command.", ())


# ---- Channels ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEntry(Section):
    """A way for messages to come in and go out: HTTP, signed."""

    type: Literal["webhook"] = option("What it is.", "webhook")
    enabled: bool = option("Whether it is open.", True)
    secret: str | None = option(
        "Signs what goes both ways; better `${VARIABLE}`.", secret=True, required=True
    )
    url: str | None = option("Where messages are sent to.", secret=True, expected=ADDRESS)
    agent: str | None = option("Who answers.")
    allow_from: tuple[str, ...] = option("Senders that are heard; `*` is all.", ("*",))
    operators: tuple[str, ...] = option("Senders that may decide about approvals.", ())
    block_streaming: bool = option("Whether replies go out in parts, as they come.", False)
    edits: bool = option("Whether the other side can change a message that was sent.", False)
    timeout_ms: int = option("Time for one request.", 10_000, low=100, high=120_000)

    def check(self, path: str) -> Iterator[Told]:
        """The address is one."""
        if self.url and not self.url.lower().startswith(("http://", "https://")):
            yield wrong(Setting(join(path, "url"), None), ADDRESS, found="something else")


# ---- The gateway ----


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAuth(Section):
    """Who is let in."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("mode", "password", "allowTailscale")

    token: str | None = option(
        "A token beside those that were made by command; better `${VARIABLE}`.", secret=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTls(Section):
    """The certificate that it shows."""

    cert: str | None = option("The file with the certificate.", required=True)
    key: str | None = option("The file with its key.", required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection(Section):
    """The process that serves many clients."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("mode", "customBindHost", "controlUi", "tailscale", "remote", "trustedProxies"),
        *("channelHealthCheckMinutes", "http", "nodes", "push"),
    )

    port: int = option("Where it listens.", 18_790, low=0, high=65_535)
    bind: str = option("At which address.", "127.0.0.1")
    auth: GatewayAuth = option("Who is let in.", GatewayAuth)
    tls: GatewayTls | None = option("The certificate that it shows.")
    allowed_origins: tuple[str, ...] = option("Web pages that may connect, beside its own.", ())
    max_clients: int = option("How many may be connected.", 1_000, low=1, high=100_000)
    shutdown_seconds: int = option(
        "How long runs may take to end when it stops.", 20, low=0, high=3_600
    )
