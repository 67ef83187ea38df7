"""The sections `agents`, `models` and `auth`, and `Configuration`, the whole of `clawmode.json5`.

The help text of each field goes into the JSON Schema; `docs/reference/config.md` describes the
same settings for people. `code_mode.config` reads `codeMode`, `tools.policy` parses tool rules, and
`config.mcp` reads MCP servers.
"""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from clawmode.code_mode.config import Setting, wrong
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
from clawmode.config.reader import Issue, Section, option, unused
from clawmode.config.tools import ToolSettings
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ThinkingLevel
from clawmode.records import join
from clawmode.text import show
from clawmode.types import JsonValue

YEAR_SECONDS = 31_536_000
TIMEOUT_SECONDS = 172_800
MAX_TURNS = 500
RESERVE_TOKENS = 16_384
BOOTSTRAP_CHARS = 20_000
KEEP_RECENT_TOKENS = 20_000
MAX_TOKENS = 100_000_000

VARIABLE = "the name of an environment variable"

Verbosity: TypeAlias = Literal["off", "on", "full"]
SandboxMode: TypeAlias = Literal["off", "non-main", "all"]
Trace: TypeAlias = Literal["off", "on"]
Reasoning: TypeAlias = Literal["off", "on", "stream"]
Break: TypeAlias = Literal["text_end", "message_end"]
Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]


# ---- Agents ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice(Section):
    """A model, and the models to try if it fails."""

    primary: str | None = option("`provider/model`.")
    fallbacks: tuple[str, ...] | None = option("Models to try next, in this order.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Section):
    """The section `compaction`: how long conversations are summarized."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("mode", "provider", "maxHistoryShare", "reserveTokensFloor", "identifierPolicy"),
        *("identifierInstructions", "memoryFlush", "postCompactionSections", "notifyUser"),
        *("timeoutSeconds", "qualityGuard", "recentTurnsPreserve", "truncateAfterCompaction"),
    )

    enabled: bool | None = option(
        "Whether the older part of a long conversation is replaced by a summary.", unset=True
    )
    reserve_tokens: int | None = option(
        "Tokens of the context that stay free for the reply.",
        low=0,
        high=MAX_TOKENS,
        unset=RESERVE_TOKENS,
    )
    keep_recent_tokens: int | None = option(
        "Tokens at the end of the conversation that are kept unchanged.",
        low=0,
        high=MAX_TOKENS,
        unset=KEEP_RECENT_TOKENS,
    )
    model: str | None = option("The model that writes the summary; by default the agent's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(Section):
    """The section `sandbox` of an agent."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("backend", "scope", "workspaceAccess", "docker", "ssh", "browser", "prune"),
    )

    mode: SandboxMode | None = option("Which sessions are sandboxed.", unset="off")
    workspace_root: str | None = option("The folder for the workspaces of sandboxed runs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap(Section):
    """The section `bootstrap`: workspace files that become part of the system prompt."""

    files: tuple[str, ...] | None = option("The names of the files; missing files are skipped.")
    max_chars: int | None = option(
        "The maximum number of characters per file.", low=100, high=1_000_000, unset=BOOTSTRAP_CHARS
    )


_IGNORED_IN_AGENTS = unused(
    *("agentDir", "bootstrapMaxChars", "bootstrapTotalMaxChars", "contextPruning", "cwd"),
    *("groupChat", "heartbeat", "humanDelay", "identity", "imageModel", "mediaMaxMb"),
    *("memorySearch", "models", "params", "pdfModel", "repoRoot", "runtime", "skills"),
    *("skipBootstrap", "subagents", "timeFormat", "typingMode", "userTimezone"),
) | {
    "codeMode": "has no effect here; move it to tools",
    "thinkingDefault": "has no effect; use thinking",
    "verboseDefault": "has no effect; use verbose",
    "reasoningDefault": "has no effect; use reasoning",
    "blockStreamingDefault": "has no effect; use blockStreaming",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(Section):
    """Options of all agents that one agent can override; None means "not set"."""

    model: ModelChoice | None = option(
        "`provider/model`, or an object with fallbacks.", shorthand="primary"
    )
    thinking: ThinkingLevel | None = option(
        "How much the model reasons before it replies.", unset="off"
    )
    verbose: Verbosity | None = option("What replies contain about tool calls.", unset="off")
    trace: Trace | None = option("Whether runs are recorded as trajectories.", unset="on")
    reasoning: Reasoning | None = option("Whether the model's thoughts are shown.", unset="off")
    block_streaming: bool | None = option("Whether replies are sent in parts.", unset=False)
    block_streaming_break: Break | None = option("Where a part ends.", unset="text_end")
    workspace: str | None = option("The working folder of runs.")
    timeout_seconds: int | None = option(
        "The time limit of a run.", low=1, high=YEAR_SECONDS, unset=TIMEOUT_SECONDS
    )
    max_turns: int | None = option(
        "The maximum number of requests to the model in one run.",
        low=1,
        high=10_000,
        unset=MAX_TURNS,
    )
    context_tokens: int | None = option(
        "The size of the context, if it should be smaller than the model's.",
        low=1000,
        high=MAX_TOKENS,
    )
    compaction: Compaction | None = option("How long conversations are summarized.")
    bootstrap: Bootstrap | None = option("Workspace files in the system prompt.")
    sandbox: Sandbox | None = option("Whether runs are sandboxed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefaults(AgentOptions):
    """Options of all agents that do not override them."""

    IGNORED: ClassVar[Mapping[str, str]] = _IGNORED_IN_AGENTS

    max_concurrent: int = option(
        "Concurrent runs of all agents; 0 means four per CPU, at least 8.",
        0,
        low=0,
        high=10_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry(AgentOptions):
    """One agent in `agents.list`."""

    IGNORED: ClassVar[Mapping[str, str]] = _IGNORED_IN_AGENTS

    id: str = option("The id of the agent.", "", required=True, expected="the name of an agent")
    default: bool = option("Whether this agent is used if a request names no agent.", False)
    name: str | None = option("A name for people.")
    tools: ToolSettings = option("Tool settings, in addition to the global ones.", ToolSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents(Section):
    """The section `agents` of the configuration."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("entries")

    defaults: AgentDefaults = option("Options of all agents.", AgentDefaults)
    list: tuple[AgentEntry, ...] = option("Single agents.", ())

    def check(self, path: str) -> Iterator[Issue]:
        ids: set[str] = set()
        default = ""
        for index, entry in enumerate(self.list):
            at = f"{join(path, 'list')}[{index}]"
            if entry.id in ids:
                text = f"{at}.id: {show(entry.id)} is already the id of another agent"
                yield ConfigurationError(text, path=f"{at}.id")
            if entry.default and default:
                text = f"{at}.default: {show(default)} is already the default agent"
                yield ConfigurationError(text, path=f"{at}.default")
            ids |= {entry.id} - {""}
            default = default or (entry.id if entry.default else "")


# ---- Models ----


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource(Section):
    """The source of an API key: exactly one of its fields is set."""

    env: str | None = option(
        "The environment variable with the key.", secret=True, expected=VARIABLE
    )
    file: str | None = option("The file with the key.", secret=True)
    command: tuple[str, ...] | None = option(
        "A program that prints the key, and its arguments.", secret=True
    )

    def check(self, path: str) -> Iterator[Issue]:
        yield from self._one_of(path, "env", "file", "command")

    def _one_of(self, path: str, *names: str) -> Iterator[ConfigurationError]:
        count = sum(bool(getattr(self, name)) for name in names)
        if count != 1:
            expected = "one of " + ", ".join(names)
            yield wrong(Setting(path, None), expected, found="several" if count else "none")
        if self.env and not re.fullmatch(r"[A-Za-z_]\w*", self.env, re.ASCII):
            yield wrong(Setting(join(path, "env"), None), VARIABLE, found="another string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(Section):
    """A model of a provider; these fields override the built-in knowledge about it."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("api", "compat", "cost", "headers", "params")

    id: str = option(
        "The name of the model at the provider.", "", required=True, expected="a model's id"
    )
    name: str | None = option("A name for people.")
    context_window: int | None = option(
        "The size of the context in tokens.", low=1, high=MAX_TOKENS
    )
    max_tokens: int | None = option(
        "The maximum size of a reply in tokens.", low=1, high=MAX_TOKENS
    )
    reasoning: bool | None = option("Whether the model can reason.")
    input: tuple[Literal["text", "image"], ...] | None = option("The kinds of input.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderEntry(Section):
    """A model provider: its address, API, key and models."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        "agentRuntime", "authHeader", "injectNumCtxForOpenAICompat", "localService", "request"
    )

    base_url: str | None = option("The address of the API.", secret=True, expected=ADDRESS)
    api: Api | None = option("The API of the provider.")
    api_key: str | None = option("The key; better `${VARIABLE}`.", secret=True)
    auth: KeySource | None = option("The source of the key, instead of `apiKey`.")
    headers: dict[str, str] = option("Headers of every request.", dict, secret=True)
    timeout_seconds: int | None = option(
        "Time limit for connecting, for the response, and for silence during it.",
        low=1,
        high=YEAR_SECONDS,
    )
    local: bool | None = option("Whether the provider runs on your own hardware.")
    models: tuple[ModelEntry, ...] = option("The models of the provider.", ())

    def check(self, path: str) -> Iterator[Issue]:
        if self.base_url and not self.base_url.lower().startswith(("http://", "https://")):
            yield wrong(Setting(join(path, "baseUrl"), None), ADDRESS, found="another string")
        if self.api_key and self.auth:
            yield wrong(Setting(path, None), "one of apiKey, auth", found="both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Section):
    """The section `models` of the configuration."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("mode", "bedrockDiscovery", "pricing")

    providers: dict[str, ProviderEntry] = option("Providers by id.", dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthProfile(KeySource):
    """A named key of a provider."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("mode", "email", "displayName")

    provider: str = option(
        "The provider that the key belongs to.", "", required=True, expected="a provider's id"
    )
    key: str | None = option("The key; better `${VARIABLE}`.", secret=True)

    def check(self, path: str) -> Iterator[Issue]:
        yield from self._one_of(path, "env", "file", "command", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth(Section):
    """The section `auth`: several keys of a provider, by name."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("order", "cooldowns")

    profiles: dict[str, AuthProfile] = option("Keys by a name that you choose.", dict)


# ---- The whole file ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Section):
    """The whole configuration file."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("acp", "approvals", "audio", "bindings", "broadcast", "browser", "canvasHost", "cli"),
        *("commands", "discovery", "env", "logging", "media", "memory", "meta", "nodeHost"),
        *("secrets", "talk", "ui", "update", "web", "wizard", "$include"),
    ) | {"codeMode": "has no effect here; move it to tools"}

    schema: str | None = option(
        "The address of the JSON Schema of this file, for editors.", key="$schema"
    )
    agents: Agents = option("Agents, their models and limits.", Agents)
    models: Models = option("Model providers.", Models)
    auth: Auth = option("Keys of model providers.", Auth)
    tools: ToolSettings = option("Which tools exist and what they may do.", ToolSettings)
    mcp: JsonValue = option("MCP servers.", secret=True, schema={"type": "object"})
    mcp_servers: JsonValue = option(
        "MCP servers, in the format of other clients.", secret=True, schema={"type": "object"}
    )
    session: Session = option("Sessions and their transcripts.", Session)
    messages: Messages = option("Incoming messages.", Messages)
    diagnostics: Diagnostics = option("Detection of sessions without progress.", Diagnostics)
    hooks: HookSection = option("Scripts of the operator.", HookSection)
    plugins: PluginSection = option("Plugins.", PluginSection)
    gateway: GatewaySection = option("The gateway.", GatewaySection)
    cron: CronSection = option("Scheduled runs.", CronSection)
    skills: Skills = option("Skills.", Skills)
    security: SecuritySection = option("Which packages may be installed.", SecuritySection)
    channels: dict[str, ChannelEntry] = option("Channels by a name that you choose.", dict)
