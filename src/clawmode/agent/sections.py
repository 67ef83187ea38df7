"""The sections of `clawmode.json5`, as data.

What a key means stands beside it; `docs/reference/config.md` has the same for people. `codeMode`
is read by `config`, rules of tools by `policy`, MCP servers by `mcp/config`, and sections of parts
that come later are kept as they are.
"""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from clawmode.config import (
    KEYS,
    RANGES,
    SUSPENDED_RUNS,
    CodeModeConfig,
    Setting,
    join,
    show,
    wrong,
)
from clawmode.config_schema import (
    NOT_USED,
    Option,
    Reader,
    Section,
    Told,
    option,
    type_schema,
)
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ThinkingLevel
from clawmode.policy import PolicyLayer, Rule
from clawmode.tools import JsonObject
from clawmode.types import JsonValue

YEAR_SECONDS = 31_536_000
TIMEOUT_SECONDS = 172_800
MAX_TURNS = 500
RESERVE_TOKENS = 16_384
BOOTSTRAP_CHARS = 20_000
KEEP_RECENT_TOKENS = 20_000
MAX_TOKENS = 100_000_000
DAY_MS = 86_400_000

ADDRESS = "an address that begins with http:// or https://"
VARIABLE = "the name of a variable"

Verbosity: TypeAlias = Literal["off", "on", "full"]
SandboxMode: TypeAlias = Literal["off", "non-main", "all"]
Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]
QueueMode: TypeAlias = Literal["steer", "followup", "collect", "interrupt"]
Drop: TypeAlias = Literal["summarize", "old", "new"]


def _unused(*keys: str) -> dict[str, str]:
    """Keys of the product whose names we follow, for which we have nothing."""
    return dict.fromkeys(keys, NOT_USED)


# ---- Tools ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules(Section):
    """One layer of tool policy."""

    profile: str | None = option("A named list of tools to start from.")
    allow: tuple[str, ...] | None = option("What is allowed; nothing else is.")
    also_allow: tuple[str, ...] | None = option("What is allowed besides the profile.")
    deny: tuple[str, ...] | None = option("What is denied, whatever else is said.")

    def check(self, path: str) -> Iterator[Told]:
        """Every rule that is none, each at its place."""
        if self.allow is not None and self.also_allow:
            yield from _refused(lambda: PolicyLayer(path, self.allow, self.also_allow or ()))
        if self.profile is not None:
            at = join(path, "profile")
            yield from _refused(lambda: PolicyLayer(at, profile=self.profile))
        for key, rules in (
            ("allow", self.allow),
            ("alsoAllow", self.also_allow),
            ("deny", self.deny),
        ):
            for index, text in enumerate(rules or ()):
                at = f"{join(path, key)}[{index}]"
                yield from _refused(lambda text=text, at=at: Rule.parse(text, at))

    def rules(self) -> JsonObject | None:
        """As `Policy.from_config` takes them; None if there are none."""
        lists = {"allow": self.allow, "alsoAllow": self.also_allow, "deny": self.deny}
        made: JsonObject = {key: list(it) for key, it in lists.items() if it is not None}
        return made | ({"profile": self.profile} if self.profile else {}) or None


def _refused(make: Callable[[], object]) -> Iterator[ConfigurationError]:
    try:
        make()
    except ConfigurationError as error:
        yield error


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxTools(Section):
    """What sandboxed agents get."""

    tools: ToolRules | None = option("Rules for sandboxed agents; MCP needs `bundle-mcp` here.")


def _keep_code_mode(reader: Reader, setting: Setting) -> Setting:
    """`codeMode` with its path: agents' values are laid over it before it can be judged."""
    if not isinstance(setting.value, dict):
        return setting
    reader.unknown(setting, KEYS, {})
    known: JsonObject = {key: it for key, it in setting.value.items() if key in KEYS}
    return Setting(setting.path, known)


def _code_mode_schema() -> JsonObject:
    ranges = RANGES | {"max_suspended_runs": SUSPENDED_RUNS}
    names = {name: key for key, name in KEYS.items()}
    properties: JsonObject = {}
    for each in fields(CodeModeConfig):
        low, high = ranges.get(each.name, (None, None))
        properties[names[each.name]] = type_schema(each.type, Option(help="", low=low, high=high))
    whole: JsonObject = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return {"anyOf": [{"type": "boolean"}, whole]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(ToolRules):
    """Which tools there are, and how a model gets to them."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        *("exec", "fs", "web", "media", "links", "elevated", "message", "agentToAgent"),
        *("sessions", "sessions_spawn", "subagents", "loopDetection", "experimental"),
    )

    by_provider: dict[str, ToolRules] = option(
        "Rules for a provider, or for a model as `provider/model`.", dict
    )
    tools_by_sender: dict[str, ToolRules] = option(
        "Rules for who asked: `channel:`, `id:`, `e164:`, `username:`, `name:`, `*`.", dict
    )
    sandbox: SandboxTools = option("What sandboxed agents get.", SandboxTools)
    code_mode: Setting | None = option(
        "Code mode: true, false or its settings.", hook=_keep_code_mode, schema=_code_mode_schema()
    )
    tool_search: JsonValue = option("Tool search; for later.")


# ---- Agents ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice(Section):
    """Which model, and which instead if it fails."""

    primary: str | None = option("`provider/model`.")
    fallbacks: tuple[str, ...] | None = option("What is tried next, in this order.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Section):
    """How a conversation that grows too long is shortened."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        *("mode", "provider", "maxHistoryShare", "reserveTokensFloor", "identifierPolicy"),
        *("identifierInstructions", "memoryFlush", "postCompactionSections", "notifyUser"),
        *("timeoutSeconds", "qualityGuard", "recentTurnsPreserve", "truncateAfterCompaction"),
    )

    enabled: bool | None = option("Whether it is done at all.", unset=True)
    reserve_tokens: int | None = option(
        "Tokens of the context that are kept free for the answer.",
        low=0,
        high=MAX_TOKENS,
        unset=RESERVE_TOKENS,
    )
    keep_recent_tokens: int | None = option(
        "Tokens at the end that are kept word for word.",
        low=0,
        high=MAX_TOKENS,
        unset=KEEP_RECENT_TOKENS,
    )
    model: str | None = option("Who sums up; the agent's own model if it is not set.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(Section):
    """Whether runs are sandboxed."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        *("backend", "scope", "workspaceAccess", "docker", "ssh", "browser", "prune"),
    )

    mode: SandboxMode | None = option("Which sessions are sandboxed.", unset="off")
    workspace_root: str | None = option("Where sandboxed runs have their workspace instead.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap(Section):
    """The files of the workspace that go into the system prompt."""

    files: tuple[str, ...] | None = option("Their names; those that are not there are left out.")
    max_chars: int | None = option(
        "How much of each.", low=100, high=1_000_000, unset=BOOTSTRAP_CHARS
    )


_ASIDE_OF_AGENTS = _unused(
    *("agentDir", "bootstrapMaxChars", "bootstrapTotalMaxChars", "contextPruning", "cwd"),
    *("groupChat", "heartbeat", "humanDelay", "identity", "imageModel", "mediaMaxMb"),
    *("memorySearch", "models", "params", "pdfModel", "repoRoot", "runtime", "skills"),
    *("skipBootstrap", "subagents", "timeFormat", "typingMode", "userTimezone"),
) | {
    "codeMode": "has no effect here; it belongs into tools",
    "thinkingDefault": "has no effect; here it is called thinking",
    "verboseDefault": "has no effect; here it is called verbose",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(Section):
    """What is set for all agents, and again for one; None is not set."""

    model: ModelChoice | None = option(
        "`provider/model`, or an object with fallbacks.", shorthand="primary"
    )
    thinking: ThinkingLevel | None = option("How much the model thinks.", unset="off")
    verbose: Verbosity | None = option("How much of tool calls replies tell.", unset="off")
    workspace: str | None = option("The folder that runs work in.")
    timeout_seconds: int | None = option(
        "How long a run may take.", low=1, high=YEAR_SECONDS, unset=TIMEOUT_SECONDS
    )
    max_turns: int | None = option(
        "How often a run may ask the model.", low=1, high=10_000, unset=MAX_TURNS
    )
    context_tokens: int | None = option(
        "The model's context, if it is to be smaller than it is.", low=1000, high=MAX_TOKENS
    )
    compaction: Compaction | None = option("How long conversations are shortened.")
    bootstrap: Bootstrap | None = option("What it reads before anything else.")
    sandbox: Sandbox | None = option("Whether runs are sandboxed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults(AgentOptions):
    """What agents have that do not say otherwise."""

    ASIDE: ClassVar[Mapping[str, str]] = _ASIDE_OF_AGENTS

    max_concurrent: int = option(
        "Runs at the same time, of all agents; 0 is four for each CPU, at least 8.",
        0,
        low=0,
        high=10_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry(AgentOptions):
    """An agent of the list."""

    ASIDE: ClassVar[Mapping[str, str]] = _ASIDE_OF_AGENTS

    id: str = option("Its id.", "", required=True, expected="the name of an agent")
    default: bool = option("Whether it answers where none is named.", False)
    name: str | None = option("What people call it.")
    tools: ToolSettings = option("Its tools: laid over the global ones.", ToolSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents(Section):
    """Who runs."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("entries")

    defaults: AgentDefaults = option("What all agents have.", AgentDefaults)
    list: tuple[AgentEntry, ...] = option("Agents by id.", ())

    def check(self, path: str) -> Iterator[Told]:
        """An id stands once, and one agent at most is the default one."""
        ids: set[str] = set()
        default = ""
        for index, entry in enumerate(self.list):
            at = f"{join(path, 'list')}[{index}]"
            if entry.id in ids:
                text = f"{at}.id: {show(entry.id)} is the id of an earlier agent already"
                yield ConfigurationError(text, path=f"{at}.id")
            if entry.default and default:
                text = f"{at}.default: {show(default)} is the default agent already"
                yield ConfigurationError(text, path=f"{at}.default")
            ids |= {entry.id} - {""}
            default = default or (entry.id if entry.default else "")


# ---- Models ----


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource(Section):
    """Where a key comes from: one of these."""

    env: str | None = option(
        "The environment variable that holds it.", secret=True, expected=VARIABLE
    )
    file: str | None = option("The file that holds it.", secret=True)
    command: tuple[str, ...] | None = option(
        "The program that prints it, and its arguments.", secret=True
    )

    def check(self, path: str) -> Iterator[Told]:
        """There is one source."""
        yield from self._one_of(path, "env", "file", "command")

    def _one_of(self, path: str, *names: str) -> Iterator[ConfigurationError]:
        count = sum(bool(getattr(self, name)) for name in names)
        if count != 1:
            expected = "one of " + ", ".join(names)
            yield wrong(Setting(path, None), expected, found="several" if count else "none")
        if self.env and not re.fullmatch(r"[A-Za-z_]\w*", self.env, re.ASCII):
            yield wrong(Setting(join(path, "env"), None), VARIABLE, found="something else")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(Section):
    """A model of a provider, where it is not known what it can do."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("api", "compat", "cost", "headers", "params")

    id: str = option("What the provider calls it.", "", required=True, expected="a model's id")
    name: str | None = option("What people call it.")
    context_window: int | None = option("Tokens that it can read.", low=1, high=MAX_TOKENS)
    max_tokens: int | None = option("Tokens that it can write.", low=1, high=MAX_TOKENS)
    reasoning: bool | None = option("Whether it can think.")
    input: tuple[Literal["text", "image"], ...] | None = option("What it can read.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderEntry(Section):
    """Who has models, how they are reached, and with which key."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        "agentRuntime", "authHeader", "injectNumCtxForOpenAICompat", "localService", "request"
    )

    base_url: str | None = option("The address.", secret=True, expected=ADDRESS)
    api: Api | None = option("What it speaks.")
    api_key: str | None = option("The key, or better `${VARIABLE}`.", secret=True)
    auth: KeySource | None = option("Where the key comes from instead.")
    headers: dict[str, str] = option("Sent with every request.", dict, secret=True)
    timeout_seconds: int | None = option(
        "Time for a request: connecting, waiting and silence.", low=1, high=YEAR_SECONDS
    )
    local: bool | None = option("Whether it runs on hardware of yours; told by the address else.")
    models: tuple[ModelEntry, ...] = option("Its models.", ())

    def check(self, path: str) -> Iterator[Told]:
        """The address is one, and there is one key."""
        if self.base_url and not self.base_url.lower().startswith(("http://", "https://")):
            yield wrong(Setting(join(path, "baseUrl"), None), ADDRESS, found="something else")
        if self.api_key and self.auth:
            yield wrong(Setting(path, None), "one of apiKey, auth", found="both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Section):
    """Where models are."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("mode", "bedrockDiscovery", "pricing")

    providers: dict[str, ProviderEntry] = option("Providers by id.", dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthProfile(KeySource):
    """A key of a provider."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("mode", "email", "displayName")

    provider: str = option("Whose key it is.", "", required=True, expected="a provider's id")
    key: str | None = option("The key, or better `${VARIABLE}`.", secret=True)

    def check(self, path: str) -> Iterator[Told]:
        """There is one source."""
        yield from self._one_of(path, "env", "file", "command", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth(Section):
    """Keys that providers share, or of which they have several."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("order", "cooldowns")

    profiles: dict[str, AuthProfile] = option("Keys by a name of yours.", dict)


# ---- Sessions, messages, diagnostics ----


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLock(Section):
    """The lock on a session's transcript."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("staleMs", "maxHoldMs")

    acquire_timeout_ms: int = option(
        "How long a writer waits before the session is busy.", 60_000, low=1, high=3_600_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Section):
    """Conversations and their transcripts."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
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

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        *("messagePrefix", "responsePrefix", "groupChat", "inbound", "ackReaction"),
        *("ackReactionScope", "removeAckAfterReply", "statusReactions", "tts", "visibleReplies"),
    )

    queue: Queue = option("Messages that come while a run is under way.", Queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics(Section):
    """When a session is said to be stuck."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
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


# ---- The whole ----


# ---- Skills and plugins ----


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillEntry(Section):
    """A skill."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("apiKey", "config")

    enabled: bool = option("Whether it is told of.", True)
    env: dict[str, str] = option("Variables for the commands of runs.", dict, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFolders(Section):
    """Where skills are."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("watch", "watchDebounceMs")

    extra_dirs: tuple[str, ...] = option("Folders beside those of workspace and state.", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Skills(Section):
    """What models can be told how to do."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("allowBundled", "install", "limits")

    entries: dict[str, SkillEntry] = option("Skills by name.", dict)
    load: SkillFolders = option("Where they are.", SkillFolders)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry(Section):
    """A plugin."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("hooks", "env", "apiKey")

    enabled: bool = option("Whether it is loaded.", True)
    config: JsonObject = option("Its settings, as its manifest describes them.", dict, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFolders(Section):
    """Where plugins are."""

    paths: tuple[str, ...] = option("Folders that are plugins, or that hold some.", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSection(Section):
    """What extends the agent."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused("allow", "deny", "slots", "installs")

    enabled: bool = option("Whether any are loaded.", True)
    entries: dict[str, PluginEntry] = option("Plugins by id.", dict)
    load: PluginFolders = option("Where they are, beside installed packages.", PluginFolders)


def _later(what: str) -> Any:
    return option(f"{what}; kept as it is.", dict, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Section):
    """All that a configuration file says."""

    ASIDE: ClassVar[Mapping[str, str]] = _unused(
        *("acp", "approvals", "audio", "bindings", "broadcast", "browser", "canvasHost", "cli"),
        *("commands", "discovery", "env", "logging", "media", "memory", "meta", "nodeHost"),
        *("secrets", "talk", "ui", "update", "web", "wizard", "$include"),
    ) | {"codeMode": "has no effect here; it belongs into tools"}

    schema: str | None = option("For editors: where the schema of this file is.", key="$schema")
    agents: Agents = option("Who runs.", Agents)
    models: Models = option("Where models are.", Models)
    auth: Auth = option("Keys of providers.", Auth)
    tools: ToolSettings = option("Which tools there are.", ToolSettings)
    mcp: JsonValue = option("MCP servers.", secret=True, schema={"type": "object"})
    mcp_servers: JsonValue = option(
        "MCP servers, as other clients write them.", secret=True, schema={"type": "object"}
    )
    session: Session = option("Conversations.", Session)
    messages: Messages = option("Messages on their way in.", Messages)
    diagnostics: Diagnostics = option("When a session is stuck.", Diagnostics)
    hooks: JsonObject = _later("Hooks of operators")
    plugins: PluginSection = option("What extends the agent.", PluginSection)
    gateway: JsonObject = _later("The gateway")
    cron: JsonObject = _later("Runs at set times")
    skills: Skills = option("What models can be told how to do.", Skills)
    security: JsonObject = _later("Policies of installation")
    channels: JsonObject = _later("Channels")
