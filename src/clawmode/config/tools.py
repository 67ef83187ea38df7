"""The section `tools`: tool policy, code mode, Tool Search, and limits of the core tools."""

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, TypeAlias

from clawmode.code_mode.config import CodeModeConfig, SearchLimits
from clawmode.core_tools.exec_approvals import Ask, Security
from clawmode.exceptions import ConfigurationError
from clawmode.records import Entries, Issue, Maybe, Named, Text, join
from clawmode.sections import Section, option, unused
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import PolicyLayer
from clawmode.tools.rules import Rule
from clawmode.types import JsonObject

DAY_SECONDS = 86_400

SearchMode: TypeAlias = Literal["code", "tools", "directory"]


# ---- Tool policy ----


class ToolRules(Section):
    """The rules of one layer of tool policy."""

    profile: Maybe[Text] = option("A named list of tools to start from.")
    allow: Maybe[Entries[Text]] = option("The allowed tools; all others are denied.")
    also_allow: Maybe[Entries[Text]] = option("Tools that are allowed in addition to the profile.")
    deny: Maybe[Entries[Text]] = option("Denied tools. A deny rule always wins.")

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


class SandboxTools(Section):
    """The section `sandbox`: tool policy of sandboxed agents."""

    tools: Maybe[ToolRules] = option("Rules for sandboxed agents; MCP needs `bundle-mcp` here.")


# ---- Tool Search ----


class ToolSearchConfig(SearchLimits):
    """The section `toolSearch`: tools that a model finds by searching."""

    SHORT: ClassVar = (bool, "enabled")

    enabled: bool = option("Whether runs without code mode use Tool Search.", False)
    mode: SearchMode = option("The form in which the model sees the search.", "code")
    code_timeout_ms: int = option(
        "The time limit of one `tool_search_code` call.", 10_000, low=1000, high=60_000
    )
    max_search_limit: int = option("The maximum number of results of a search.", 20, low=1, high=50)


TOOL_SEARCH_DEFAULTS = ToolSearchConfig()


# ---- Core tools ----


class ExecSettings(Section):
    """The section `exec`, about shell commands."""

    IGNORED: ClassVar = unused(
        *("host", "node", "safeBins", "pathPrepend", "notifyOnExit", "applyPatch", "elevated"),
        *("cleanupMs", "strictInlineEval", "approvalRunningNoticeMs"),
    )

    security: Security = option("Which commands may run.", "full")
    ask: Ask = option("When a person is asked.", "off")
    ask_fallback: Security = option("What applies if nobody can be asked.", "full")
    timeout_sec: int = option(
        "The time limit of a command that sets none.", 1800, low=1, high=DAY_SECONDS
    )
    background_ms: int = option(
        "The time after which a command continues in the background.", 10_000, low=0, high=3_600_000
    )
    env: Maybe[Named[Text]] = option("Environment variables for commands.", secret=True)


class FetchSettings(Section):
    """The section `web.fetch`, about the tool `web_fetch`."""

    IGNORED: ClassVar = unused(
        *("enabled", "provider", "readability", "maxCharsCap", "cacheTtlMinutes", "userAgent"),
        "firecrawl",
    )

    allow_private: Entries[Text] = option(
        "The private addresses that `web_fetch` may reach, as `host:port`.", ()
    )
    max_chars: int = option(
        "The number of characters that `web_fetch` returns.", 50_000, low=100, high=1_000_000
    )
    timeout_seconds: int = option(
        "The time limit of a fetch, including redirects.", 30, low=1, high=600
    )


class WebSection(Section):
    """The section `web`, about tools that use the network."""

    IGNORED: ClassVar = unused("search", "x_search")

    fetch: FetchSettings = option("Limits of `web_fetch`.", FetchSettings)


class FileSection(Section):
    """The section `fs`, about file tools."""

    IGNORED: ClassVar = {
        "workspaceOnly": "has no effect: file tools are always limited to the workspace"
    }

    hard_links: bool = option("Whether files with several names may be used.", False)


class MessageSection(Section):
    """The section `message`, about the tool `message`."""

    IGNORED: ClassVar = unused("crossContext", "broadcast", "allowCrossContextSend")

    targets: Entries[Text] = option(
        "Where `message` may send in addition to the sender: `channel:target` with `*`.", ()
    )


# ---- The whole section ----


class ToolSettings(ToolRules):
    """The whole section `tools`, global or of an agent."""

    IGNORED: ClassVar = unused(
        *("media", "links", "elevated", "agentToAgent"),
        *("sessions", "sessions_spawn", "subagents", "loopDetection", "experimental"),
    )

    approve: Mode = option(
        "How calls of tools that do not only read are decided: ask a person, allow all of them, "
        "or allow none.",
        "ask",
    )
    by_provider: Named[ToolRules] = option(
        "Rules for a provider, or for a model as `provider/model`.", dict
    )
    tools_by_sender: Named[ToolRules] = option(
        "Rules for a sender: `channel:`, `id:`, `e164:`, `username:`, `name:`, `*`.", dict
    )
    sandbox: SandboxTools = option("Rules for sandboxed agents.", SandboxTools)
    code_mode: CodeModeConfig = option(
        "Code mode: true, false or an object of settings.", CodeModeConfig
    )
    tool_search: ToolSearchConfig = option(
        "Tool Search: true, false or an object of settings.", ToolSearchConfig
    )
    exec: ExecSettings = option("Shell commands.", ExecSettings)
    web: WebSection = option("Tools that use the network.", WebSection)
    fs: FileSection = option("File tools.", FileSection)
    message: MessageSection = option("The tool `message`.", MessageSection)
