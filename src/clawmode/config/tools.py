"""The section `tools`: tool policy, code mode, Tool Search, and limits of the core tools."""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, TypeAlias

from clawmode.code_mode.config import KEYS, RANGES, SUSPENDED_RUNS, CodeModeConfig, Setting, wrong
from clawmode.config.reader import (
    ABSENT,
    Issue,
    Option,
    Reader,
    Section,
    option,
    schema_of,
    type_schema,
    unused,
)
from clawmode.core_tools.exec_approvals import Ask, Security
from clawmode.exceptions import ConfigurationError
from clawmode.records import join
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import PolicyLayer
from clawmode.tools.rules import Rule
from clawmode.types import JsonObject

DAY_SECONDS = 86_400

SearchMode: TypeAlias = Literal["code", "tools", "directory"]

CODE_TIMEOUTS_MS = (1000, 60_000)
SEARCH_LIMITS = (1, 50)


# ---- Tool policy ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules(Section):
    """The rules of one layer of tool policy."""

    profile: str | None = option("A named list of tools to start from.")
    allow: tuple[str, ...] | None = option("The allowed tools; all others are denied.")
    also_allow: tuple[str, ...] | None = option(
        "Tools that are allowed in addition to the profile."
    )
    deny: tuple[str, ...] | None = option("Denied tools. A deny rule always wins.")

    def check(self, path: str) -> Iterator[Issue]:
        if self.allow is not None and self.also_allow:
            yield from _errors_of(lambda: PolicyLayer(path, self.allow, self.also_allow or ()))
        if self.profile is not None:
            at = join(path, "profile")
            yield from _errors_of(lambda: PolicyLayer(at, profile=self.profile))
        for key, rules in (
            ("allow", self.allow),
            ("alsoAllow", self.also_allow),
            ("deny", self.deny),
        ):
            for index, text in enumerate(rules or ()):
                at = f"{join(path, key)}[{index}]"
                yield from _errors_of(lambda text=text, at=at: Rule.parse(text, at))

    def rules(self) -> JsonObject | None:
        """Returns the rules in the form that `Policy.from_config` accepts; None without rules."""
        lists = {"allow": self.allow, "alsoAllow": self.also_allow, "deny": self.deny}
        made: JsonObject = {key: list(names) for key, names in lists.items() if names is not None}
        return made | ({"profile": self.profile} if self.profile else {}) or None


def _errors_of(make: Callable[[], object]) -> Iterator[ConfigurationError]:
    try:
        make()
    except ConfigurationError as error:
        yield error


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxTools(Section):
    """The section `sandbox`: tool policy of sandboxed agents."""

    tools: ToolRules | None = option("Rules for sandboxed agents; MCP needs `bundle-mcp` here.")


# ---- Code mode and Tool Search ----


def _keep_code_mode(reader: Reader, setting: Setting) -> Setting:
    """Keeps `codeMode` unread: it is only checked after the settings of an agent are merged in."""
    if not isinstance(setting.value, dict):
        return setting
    reader.warn_unknown_keys(setting, KEYS, {})
    known: JsonObject = {key: value for key, value in setting.value.items() if key in KEYS}
    return Setting(setting.path, known)


def _code_mode_schema() -> JsonObject:
    ranges = RANGES | {"max_suspended_runs": SUSPENDED_RUNS}
    names = {name: key for key, name in KEYS.items()}
    properties: JsonObject = {}
    for item in fields(CodeModeConfig):
        low, high = ranges.get(item.name, (None, None))
        properties[names[item.name]] = type_schema(item.type, Option(help="", low=low, high=high))
    whole: JsonObject = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return {"anyOf": [{"type": "boolean"}, whole]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSearchConfig:
    """The resolved settings of Tool Search, all within their ranges.

    Attributes:
        enabled: Whether runs without code mode use Tool Search.
        code_timeout_ms: The time limit of one `tool_search_code` call.
    """

    enabled: bool = False
    mode: SearchMode = "code"
    code_timeout_ms: int = 10_000
    search_default_limit: int = 8
    max_search_limit: int = 20


TOOL_SEARCH_DEFAULTS = ToolSearchConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSearchSection(Section):
    """The section `toolSearch`; None means "not set"."""

    enabled: bool | None = option("Whether runs without code mode use Tool Search.", unset=False)
    mode: SearchMode | None = option(
        "The form in which the model sees the search.", unset=TOOL_SEARCH_DEFAULTS.mode
    )
    code_timeout_ms: int | None = option(
        "The time limit of one `tool_search_code` call.",
        low=CODE_TIMEOUTS_MS[0],
        high=CODE_TIMEOUTS_MS[1],
        unset=TOOL_SEARCH_DEFAULTS.code_timeout_ms,
    )
    search_default_limit: int | None = option(
        "The number of results of a search that sets no limit.",
        low=SEARCH_LIMITS[0],
        high=SEARCH_LIMITS[1],
        unset=TOOL_SEARCH_DEFAULTS.search_default_limit,
    )
    max_search_limit: int | None = option(
        "The maximum number of results of a search.",
        low=SEARCH_LIMITS[0],
        high=SEARCH_LIMITS[1],
        unset=TOOL_SEARCH_DEFAULTS.max_search_limit,
    )


def _read_tool_search(reader: Reader, setting: Setting) -> object:
    """Reads `toolSearch`; true and false are short for an object with only `enabled`."""
    if isinstance(setting.value, bool):
        return ToolSearchSection(enabled=setting.value)
    if isinstance(setting.value, dict):
        return reader.section(ToolSearchSection, setting)
    reader.add([wrong(setting, "true, false or an object")])
    return ABSENT


# ---- Core tools ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings(Section):
    """The section `exec`, about shell commands; None means "not set"."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("host", "node", "safeBins", "pathPrepend", "notifyOnExit", "applyPatch", "elevated"),
        *("cleanupMs", "strictInlineEval", "approvalRunningNoticeMs"),
    )

    security: Security | None = option("Which commands may run.", unset="full")
    ask: Ask | None = option("When a person is asked.", unset="off")
    ask_fallback: Security | None = option("What applies if nobody can be asked.", unset="full")
    timeout_sec: int | None = option(
        "The time limit of a command that sets none.", low=1, high=DAY_SECONDS, unset=1800
    )
    background_ms: int | None = option(
        "The time after which a command continues in the background.",
        low=0,
        high=3_600_000,
        unset=10_000,
    )
    env: dict[str, str] | None = option("Environment variables for commands.", secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings(Section):
    """The section `web.fetch`, about the tool `web_fetch`; None means "not set"."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("enabled", "provider", "readability", "maxCharsCap", "cacheTtlMinutes", "userAgent"),
        "firecrawl",
    )

    allow_private: tuple[str, ...] | None = option(
        "The private addresses that `web_fetch` may reach, as `host:port`."
    )
    max_chars: int | None = option(
        "The number of characters that `web_fetch` returns.", low=100, high=1_000_000, unset=50_000
    )
    timeout_seconds: int | None = option(
        "The time limit of a fetch, including redirects.", low=1, high=600, unset=30
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSection(Section):
    """The section `web`, about tools that use the network."""

    IGNORED: ClassVar[Mapping[str, str]] = unused("search", "x_search")

    fetch: FetchSettings | None = option("Limits of `web_fetch`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSection(Section):
    """The section `fs`, about file tools."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "workspaceOnly": "has no effect: file tools are always limited to the workspace"
    }

    hard_links: bool | None = option("Whether files with several names may be used.", unset=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSection(Section):
    """The section `message`, about the tool `message`."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        "crossContext", "broadcast", "allowCrossContextSend"
    )

    targets: tuple[str, ...] | None = option(
        "Where `message` may send in addition to the sender: `channel:target` with `*`."
    )


# ---- The whole section ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(ToolRules):
    """The whole section `tools`, global or of an agent."""

    IGNORED: ClassVar[Mapping[str, str]] = unused(
        *("media", "links", "elevated", "agentToAgent"),
        *("sessions", "sessions_spawn", "subagents", "loopDetection", "experimental"),
    )

    approve: Mode | None = option(
        "How calls of tools that do not only read are decided: ask a person, allow all of them, "
        "or allow none.",
        unset="ask",
    )
    by_provider: dict[str, ToolRules] = option(
        "Rules for a provider, or for a model as `provider/model`.", dict
    )
    tools_by_sender: dict[str, ToolRules] = option(
        "Rules for a sender: `channel:`, `id:`, `e164:`, `username:`, `name:`, `*`.", dict
    )
    sandbox: SandboxTools = option("Rules for sandboxed agents.", SandboxTools)
    code_mode: Setting | None = option(
        "Code mode: true, false or an object of settings.",
        hook=_keep_code_mode,
        schema=_code_mode_schema(),
    )
    tool_search: ToolSearchSection | None = option(
        "Tool Search: true, false or an object of settings.",
        hook=_read_tool_search,
        schema={"anyOf": [{"type": "boolean"}, schema_of(ToolSearchSection)]},
    )
    exec: ExecSettings | None = option("Shell commands.")
    web: WebSection | None = option("Tools that use the network.")
    fs: FileSection | None = option("File tools.")
    message: MessageSection | None = option("The tool `message`.")
