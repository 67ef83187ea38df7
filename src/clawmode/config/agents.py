"""`clawmode.json5` as data: agents, models and keys, and the whole with the sections of others.

What a key means stands beside it; `docs/reference/config.md` has the same for people. `codeMode`
is read by `config`, rules of tools by `policy`, MCP servers by `mcp/config`.
"""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from clawmode.code_mode.config import Setting, join, show, wrong
from clawmode.config.operations import (
    ADDRESS,
    ChannelEntry,
    CronSection,
    Diagnostics,
    GatewaySection,
    HookSection,
    Messages,
    PluginSection,
    SecuritySection,
    Session,
    Skills,
)
from clawmode.config.reader import Section, Told, option, unused
from clawmode.config.tools import ToolSettings
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ThinkingLevel
from clawmode.types import JsonValue

YEAR_SECONDS = 31_536_000
TIMEOUT_SECONDS = 172_800
MAX_TURNS = 500
RESERVE_TOKENS = 16_384
BOOTSTRAP_CHARS = 20_000
KEEP_RECENT_TOKENS = 20_000
MAX_TOKENS = 100_000_000

VARIABLE = "the name of a variable"

Verbosity: TypeAlias = Literal["off", "on", "full"]
SandboxMode: TypeAlias = Literal["off", "non-main", "all"]
Trace: TypeAlias = Literal["off", "on"]
Reasoning: TypeAlias = Literal["off", "on", "stream"]
Break: TypeAlias = Literal["text_end", "message_end"]
Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]


# ---- Agents ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice(Section):
    """Which model, and which instead if it fails."""

    primary: str | None = option("`provider/model`.")
    fallbacks: tuple[str, ...] | None = option("What is tried next, in this order.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Section):
    """How a conversation that grows too long is shortened."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
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

    ASIDE: ClassVar[Mapping[str, str]] = unused(
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


_ASIDE_OF_AGENTS = unused(
    *("agentDir", "bootstrapMaxChars", "bootstrapTotalMaxChars", "contextPruning", "cwd"),
    *("groupChat", "heartbeat", "humanDelay", "identity", "imageModel", "mediaMaxMb"),
    *("memorySearch", "models", "params", "pdfModel", "repoRoot", "runtime", "skills"),
    *("skipBootstrap", "subagents", "timeFormat", "typingMode", "userTimezone"),
) | {
    "codeMode": "has no effect here; it belongs into tools",
    "thinkingDefault": "has no effect; here it is called thinking",
    "verboseDefault": "has no effect; here it is called verbose",
    "reasoningDefault": "has no effect; here it is called reasoning",
    "blockStreamingDefault": "has no effect; here it is called blockStreaming",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(Section):
    """What is set for all agents, and again for one; None is not set."""

    model: ModelChoice | None = option(
        "`provider/model`, or an object with fallbacks.", shorthand="primary"
    )
    thinking: ThinkingLevel | None = option("How much the model thinks.", unset="off")
    verbose: Verbosity | None = option("How much of tool calls replies tell.", unset="off")
    trace: Trace | None = option("Whether what runs do is recorded step by step.", unset="on")
    reasoning: Reasoning | None = option("How the model's thoughts are told.", unset="off")
    block_streaming: bool | None = option("Whether replies go out in parts.", unset=False)
    block_streaming_break: Break | None = option("Where a part ends.", unset="text_end")
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

    ASIDE: ClassVar[Mapping[str, str]] = unused("entries")

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

    ASIDE: ClassVar[Mapping[str, str]] = unused("api", "compat", "cost", "headers", "params")

    id: str = option("What the provider calls it.", "", required=True, expected="a model's id")
    name: str | None = option("What people call it.")
    context_window: int | None = option("Tokens that it can read.", low=1, high=MAX_TOKENS)
    max_tokens: int | None = option("Tokens that it can write.", low=1, high=MAX_TOKENS)
    reasoning: bool | None = option("Whether it can think.")
    input: tuple[Literal["text", "image"], ...] | None = option("What it can read.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderEntry(Section):
    """Who has models, how they are reached, and with which key."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
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

    ASIDE: ClassVar[Mapping[str, str]] = unused("mode", "bedrockDiscovery", "pricing")

    providers: dict[str, ProviderEntry] = option("Providers by id.", dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthProfile(KeySource):
    """A key of a provider."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("mode", "email", "displayName")

    provider: str = option("Whose key it is.", "", required=True, expected="a provider's id")
    key: str | None = option("The key, or better `${VARIABLE}`.", secret=True)

    def check(self, path: str) -> Iterator[Told]:
        """There is one source."""
        yield from self._one_of(path, "env", "file", "command", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth(Section):
    """Keys that providers share, or of which they have several."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("order", "cooldowns")

    profiles: dict[str, AuthProfile] = option("Keys by a name of yours.", dict)


# ---- The whole ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Section):
    """All that a configuration file says."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
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
    hooks: HookSection = option("What operators hook in.", HookSection)
    plugins: PluginSection = option("What extends the agent.", PluginSection)
    gateway: GatewaySection = option("The gateway.", GatewaySection)
    cron: CronSection = option("Runs at set times.", CronSection)
    skills: Skills = option("What models can be told how to do.", Skills)
    security: SecuritySection = option("What operators insist on.", SecuritySection)
    channels: dict[str, ChannelEntry] = option("Channels by a name of yours.", dict)
