"""The section `tools`: which tools there are, how a model gets to them, what our own may do."""

# ruff: noqa: RUF009 (`option` makes a field, not a value)

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from clawmode.code_mode.config import (
    KEYS,
    RANGES,
    SUSPENDED_RUNS,
    CodeModeConfig,
    Setting,
    join,
    wrong,
)
from clawmode.config.reader import (
    ABSENT,
    Option,
    Reader,
    Section,
    Told,
    option,
    schema_of,
    type_schema,
    unused,
)
from clawmode.config.tool_search import DEFAULTS, MAX_LIMITS, TIMEOUTS, SearchMode
from clawmode.core_tools.exec_approvals import Ask, Security
from clawmode.exceptions import ConfigurationError
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import PolicyLayer
from clawmode.tools.rules import Rule
from clawmode.types import JsonObject

DAY_SECONDS = 86_400


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
class ToolSearchSection(Section):
    """Tool Search; None is not set."""

    enabled: bool | None = option("Whether runs without code mode have it.", unset=False)
    mode: SearchMode | None = option("What the model sees.", unset=DEFAULTS.mode)
    code_timeout_ms: int | None = option(
        "Wall-clock time of one body of `tool_search_code`.",
        low=TIMEOUTS[0],
        high=TIMEOUTS[1],
        unset=DEFAULTS.code_timeout_ms,
    )
    search_default_limit: int | None = option(
        "Results of a search that asks for no number.",
        low=MAX_LIMITS[0],
        high=MAX_LIMITS[1],
        unset=DEFAULTS.search_default_limit,
    )
    max_search_limit: int | None = option(
        "Results of any search.",
        low=MAX_LIMITS[0],
        high=MAX_LIMITS[1],
        unset=DEFAULTS.max_search_limit,
    )


def _read_tool_search(reader: Reader, setting: Setting) -> object:
    """`toolSearch`: true and false are short for an object with `enabled` alone."""
    if isinstance(setting.value, bool):
        return ToolSearchSection(enabled=setting.value)
    if isinstance(setting.value, dict):
        return reader.section(ToolSearchSection, setting)
    reader.tell([wrong(setting, "true, false or an object")])
    return ABSENT


# ---- What our own tools may do ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings(Section):
    """Commands of the shell; None is not set."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("host", "node", "safeBins", "pathPrepend", "notifyOnExit", "applyPatch", "elevated"),
        *("cleanupMs", "strictInlineEval", "approvalRunningNoticeMs"),
    )

    security: Security | None = option("Which commands may run.", unset="full")
    ask: Ask | None = option("When a person is asked.", unset="off")
    ask_fallback: Security | None = option("What holds where nobody can be asked.", unset="full")
    timeout_sec: int | None = option(
        "How long a command may take that sets no limit.", low=1, high=DAY_SECONDS, unset=1800
    )
    background_ms: int | None = option(
        "After this it goes on in the background.", low=0, high=3_600_000, unset=10_000
    )
    env: dict[str, str] | None = option("Variables that commands get.", secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings(Section):
    """`web_fetch`; None is not set."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("enabled", "provider", "readability", "maxCharsCap", "cacheTtlMinutes", "userAgent"),
        "firecrawl",
    )

    allow_private: tuple[str, ...] | None = option(
        "`host:port` of the few private addresses that may be reached."
    )
    max_chars: int | None = option(
        "Characters that it gives of a page.", low=100, high=1_000_000, unset=50_000
    )
    timeout_seconds: int | None = option("For all of it.", low=1, high=600, unset=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSection(Section):
    """The web."""

    ASIDE: ClassVar[Mapping[str, str]] = unused("search", "x_search")

    fetch: FetchSettings | None = option("`web_fetch`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSection(Section):
    """Files of the workspace."""

    ASIDE: ClassVar[Mapping[str, str]] = {
        "workspaceOnly": "has no effect: files are always those of the workspace"
    }

    hard_links: bool | None = option("Whether files with several names may be used.", unset=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSection(Section):
    """`message`."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        "crossContext", "broadcast", "allowCrossContextSend"
    )

    targets: tuple[str, ...] | None = option(
        "`channel:target` with `*`: to whom it may send, beside whoever asked."
    )


# ---- The section ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(ToolRules):
    """Which tools there are, and how a model gets to them."""

    ASIDE: ClassVar[Mapping[str, str]] = unused(
        *("media", "links", "elevated", "agentToAgent"),
        *("sessions", "sessions_spawn", "subagents", "loopDetection", "experimental"),
    )

    approve: Mode | None = option(
        "What is done about calls of tools that do not only read: a person is asked, all are "
        "allowed, or none is.",
        unset="ask",
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
    tool_search: ToolSearchSection | None = option(
        "Tool Search: true, false or its settings.",
        hook=_read_tool_search,
        schema={"anyOf": [{"type": "boolean"}, schema_of(ToolSearchSection)]},
    )
    exec: ExecSettings | None = option("Commands of the shell.")
    web: WebSection | None = option("The web.")
    fs: FileSection | None = option("Files of the workspace.")
    message: MessageSection | None = option("Messages of runs.")
