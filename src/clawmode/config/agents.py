"""The sections `agents`, `models` and `auth`, and `Configuration`, the whole of `clawmode.json5`.

The help text of each field goes into the JSON Schema; `docs/reference/config.md` describes the
same settings for people. `code_mode.config` reads `codeMode`, `tools.policy` parses tool rules, and
`config.mcp` reads MCP servers.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeAlias

from clawmode.config.operations import (
    ADDRESS,
    ChannelEntry,
    CronSection,
    Diagnostics,
    GatewaySection,
    HookSection,
    Messages,
    PluginSection,
    PostgresSection,
    SecuritySection,
    Session,
    Skills,
)
from clawmode.config.tools import ToolSettings
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.models.base import ThinkingLevel
from clawmode.records import Entries, Issue, Maybe, Named, Text, join, wrong
from clawmode.sections import Section, option, unused
from clawmode.text import show

YEAR_SECONDS = 31_536_000
MAX_TOKENS = 100_000_000

VARIABLE = "the name of an environment variable"

Verbosity: TypeAlias = Literal["off", "on", "full"]
SandboxMode: TypeAlias = Literal["off", "non-main", "all"]
Trace: TypeAlias = Literal["off", "on"]
Reasoning: TypeAlias = Literal["off", "on", "stream"]
Break: TypeAlias = Literal["text_end", "message_end"]
Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]


# ---- Agents ----


class ModelChoice(Section):
    """A model, and the models to try if it fails."""

    SHORT: ClassVar = (str, "primary")

    primary: Maybe[Text] = option("`provider/model`.")
    fallbacks: Entries[Text] = option("Models to try next, in this order.", ())


class Compaction(Section):
    """The section `compaction`: how long conversations are summarized."""

    IGNORED: ClassVar = unused(
        *("mode", "provider", "maxHistoryShare", "reserveTokensFloor", "identifierPolicy"),
        *("identifierInstructions", "memoryFlush", "postCompactionSections", "notifyUser"),
        *("timeoutSeconds", "qualityGuard", "recentTurnsPreserve", "truncateAfterCompaction"),
    )

    enabled: bool = option(
        "Whether the older part of a long conversation is replaced by a summary.", True
    )
    reserve_tokens: int = option(
        "Tokens of the context that stay free for the reply.", 16_384, low=0, high=MAX_TOKENS
    )
    keep_recent_tokens: int = option(
        "Tokens at the end of the conversation that are kept unchanged.",
        20_000,
        low=0,
        high=MAX_TOKENS,
    )
    model: Maybe[Text] = option("The model that writes the summary; by default the agent's.")


class Sandbox(Section):
    """The section `sandbox` of an agent."""

    IGNORED: ClassVar = unused(
        *("backend", "scope", "workspaceAccess", "docker", "ssh", "browser", "prune")
    )

    mode: SandboxMode = option("Which sessions are sandboxed.", "off")
    workspace_root: Maybe[Text] = option("The folder for the workspaces of sandboxed runs.")


class Bootstrap(Section):
    """The section `bootstrap`: workspace files that become part of the system prompt."""

    files: Maybe[Entries[Text]] = option("The names of the files; missing files are skipped.")
    max_chars: int = option(
        "The maximum number of characters per file.", 20_000, low=100, high=1_000_000
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


class AgentOptions(Section):
    """Options of all agents that one agent can override."""

    model: ModelChoice = option("`provider/model`, or an object with fallbacks.", ModelChoice)
    thinking: ThinkingLevel = option("How much the model reasons before it replies.", "off")
    verbose: Verbosity = option("What replies contain about tool calls.", "off")
    trace: Trace = option("Whether runs are recorded as trajectories.", "on")
    reasoning: Reasoning = option("Whether the model's thoughts are shown.", "off")
    block_streaming: bool = option("Whether replies are sent in parts.", False)
    block_streaming_break: Break = option("Where a part ends.", "text_end")
    workspace: Maybe[Text] = option("The working folder of runs.")
    timeout_seconds: int = option("The time limit of a run.", 172_800, low=1, high=YEAR_SECONDS)
    max_turns: int = option(
        "The maximum number of requests to the model in one run.", 500, low=1, high=10_000
    )
    context_tokens: Maybe[int] = option(
        "The size of the context, if it should be smaller than the model's.",
        low=1000,
        high=MAX_TOKENS,
    )
    compaction: Compaction = option("How long conversations are summarized.", Compaction)
    bootstrap: Bootstrap = option("Workspace files in the system prompt.", Bootstrap)
    sandbox: Sandbox = option("Whether runs are sandboxed.", Sandbox)


class AgentDefaults(AgentOptions):
    """Options of all agents that do not override them."""

    IGNORED: ClassVar = _IGNORED_IN_AGENTS

    max_concurrent: int = option(
        "Concurrent runs of all agents; 0 means four per CPU, at least 8.", 0, low=0, high=10_000
    )


class AgentEntry(AgentOptions):
    """The settings of one agent in `agents.list`."""

    IGNORED: ClassVar = _IGNORED_IN_AGENTS

    id: Text = option("The id of the agent.", required=True, expected="the name of an agent")
    default: bool = option("Whether this agent is used if a request names no agent.", False)
    name: Maybe[Text] = option("A name for people.")
    tools: ToolSettings = option("Tool settings, in addition to the global ones.", ToolSettings)


class Agents(Section):
    """The section `agents` of the configuration."""

    IGNORED: ClassVar = unused("entries")

    defaults: AgentDefaults = option("Options of all agents.", AgentDefaults)
    list: Entries[AgentEntry] = option("Single agents.", ())

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


class KeySource(Section):
    """The source of an API key: exactly one of its fields is set."""

    env: Maybe[Text] = option(
        "The environment variable with the key.", secret=True, expected=VARIABLE
    )
    file: Maybe[Text] = option("The file with the key.", secret=True)
    command: Maybe[Entries[Text]] = option(
        "A program that prints the key, and its arguments.", secret=True
    )

    def check(self, path: str) -> Iterator[Issue]:
        yield from self._one_of(path, "env", "file", "command")

    def _one_of(self, path: str, *names: str) -> Iterator[ConfigurationError]:
        count = sum(bool(getattr(self, name)) for name in names)
        if count != 1:
            yield wrong(path, "one of " + ", ".join(names), "several" if count else "none")
        if self.env and not re.fullmatch(r"[A-Za-z_]\w*", self.env, re.ASCII):
            yield wrong(join(path, "env"), VARIABLE, "another string")


class ModelEntry(Section):
    """A model of a provider; these fields override the built-in knowledge about it."""

    IGNORED: ClassVar = unused("api", "compat", "cost", "headers", "params")

    id: Text = option(
        "The name of the model at the provider.", required=True, expected="a model's id"
    )
    name: Maybe[Text] = option("A name for people.")
    context_window: Maybe[int] = option(
        "The size of the context in tokens.", low=1, high=MAX_TOKENS
    )
    max_tokens: Maybe[int] = option(
        "The maximum size of a reply in tokens.", low=1, high=MAX_TOKENS
    )
    reasoning: Maybe[bool] = option("Whether the model can reason.")
    input: Maybe[Entries[Literal["text", "image"]]] = option("The kinds of input.")


class ProviderEntry(Section):
    """A model provider: its address, API, key and models."""

    IGNORED: ClassVar = unused(
        "agentRuntime", "authHeader", "injectNumCtxForOpenAICompat", "localService", "request"
    )

    base_url: Maybe[Text] = option("The address of the API.", secret=True, expected=ADDRESS)
    api: Maybe[Api] = option("The API of the provider.")
    api_key: Maybe[Text] = option("The key; better `${VARIABLE}`.", secret=True)
    auth: Maybe[KeySource] = option("The source of the key, instead of `apiKey`.")
    headers: Named[Text] = option("Headers of every request.", dict, secret=True)
    timeout_seconds: Maybe[int] = option(
        "Time limit for connecting, for the response, and for silence during it.",
        low=1,
        high=YEAR_SECONDS,
    )
    local: Maybe[bool] = option("Whether the provider runs on your own hardware.")
    models: Entries[ModelEntry] = option("The models of the provider.", ())

    def check(self, path: str) -> Iterator[Issue]:
        if self.base_url and not self.base_url.lower().startswith(("http://", "https://")):
            yield wrong(join(path, "baseUrl"), ADDRESS, "another string")
        if self.api_key and self.auth:
            yield wrong(path, "one of apiKey, auth", "both")


class Models(Section):
    """The section `models` of the configuration."""

    IGNORED: ClassVar = unused("mode", "bedrockDiscovery", "pricing")

    providers: Named[ProviderEntry] = option("Providers by id.", dict)


class AuthProfile(KeySource):
    """A named key of a provider."""

    IGNORED: ClassVar = unused("mode", "email", "displayName")

    provider: Text = option(
        "The provider that the key belongs to.", required=True, expected="a provider's id"
    )
    key: Maybe[Text] = option("The key; better `${VARIABLE}`.", secret=True)

    def check(self, path: str) -> Iterator[Issue]:
        yield from self._one_of(path, "env", "file", "command", "key")


class Auth(Section):
    """The section `auth`: several keys of a provider, by name."""

    IGNORED: ClassVar = unused("order", "cooldowns")

    profiles: Named[AuthProfile] = option("Keys by a name that you choose.", dict)


# ---- The whole file ----


class Configuration(Section):
    """The sections of a whole configuration file."""

    IGNORED: ClassVar = unused(
        *("acp", "approvals", "audio", "bindings", "broadcast", "browser", "canvasHost", "cli"),
        *("commands", "discovery", "env", "logging", "media", "memory", "meta", "nodeHost"),
        *("secrets", "talk", "ui", "update", "web", "wizard", "$include"),
    ) | {"codeMode": "has no effect here; move it to tools"}

    schema_address: Maybe[Text] = option(
        "The address of the JSON Schema of this file, for editors.", key="$schema"
    )
    state: Maybe[Text] = option(
        "A database for programs that wait, which several machines share: `postgresql://…`, or the "
        "variable with its address, such as `${DATABASE_URL}`. By default, the state folder.",
        secret=True,
    )
    postgres: PostgresSection = option("How the database of `state` is used.", PostgresSection)
    agents: Agents = option("Agents, their models and limits.", Agents)
    models: Models = option("Model providers.", Models)
    auth: Auth = option("Keys of model providers.", Auth)
    tools: ToolSettings = option("Which tools exist and what they may do.", ToolSettings)
    mcp: Any = option("MCP servers.", secret=True, schema={"type": "object"})
    mcp_servers: Any = option(
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
    channels: Named[ChannelEntry] = option("Channels by a name that you choose.", dict)

    def check(self, path: str) -> Iterator[Issue]:
        # An agent can lower the maximum for a limit that is set globally, or the reverse.
        everyone = self.tools.code_mode
        for index, entry in enumerate(self.agents.list):
            own = entry.tools.code_mode
            is_own = "search_default_limit" in own.model_fields_set
            limit = (own if is_own else everyone).search_default_limit
            used = own.over(everyone).search_default_limit
            is_set = is_own or "search_default_limit" in everyone.model_fields_set
            if is_set and used < limit:
                at = f"agents.list[{index}].tools.codeMode" if is_own else "tools.codeMode"
                text = f"{limit} is over {used}: {used} is used"
                yield ConfigWarning(f"{at}.searchDefaultLimit", text)
