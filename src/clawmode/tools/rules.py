"""Rules that name tools: a tool, a plugin, a group, or several by `*`, in any case.

An MCP server chooses the names of its tools, so a bare name never allows one of them: a rule needs
`<server>__<tool>`, an id or `bundle-mcp`. To deny a tool, its bare name is enough.
"""

import re
from collections.abc import Iterable, Sequence

from clawmode.exceptions import ConfigurationError
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import Tool
from clawmode.types import dataclass

ALIASES = {"bash": "exec"}

SESSIONS = (
    "sessions",
    "sessions_list",
    "sessions_history",
    "sessions_search",
    "sessions_send",
    "sessions_spawn",
    "sessions_yield",
    "session_status",
    "conversations_list",
    "conversations_send",
    "conversations_turn",
    "subagents",
)

GROUPS: dict[str, tuple[str, ...]] = {
    "runtime": ("exec", "process", "runtime", "code_execution"),
    "fs": ("read", "write", "edit", "apply_patch"),
    "sessions": (*SESSIONS, "suggest_task", "dismiss_task"),
    "memory": ("memory_search", "memory_get"),
    "web": ("web_search", "x_search", "web_fetch"),
    "ui": ("browser", "canvas", "screen", "theme", "dashboard", "terminal", "show_widget"),
    "automation": ("cron", "automations", "gateway", "heartbeat_respond", "openclaw"),
    "messaging": ("message",),
    "nodes": ("nodes", "computer"),
    "agents": (
        "agents_list",
        "get_goal",
        "create_goal",
        "update_goal",
        "update_plan",
        "ask_user",
        "skill_workshop",
    ),
    "media": (
        "image",
        "view_image",
        "image_generate",
        "music_generate",
        "video_generate",
        "tts",
        "pdf",
    ),
    "openclaw": ("openclaw:*",),
    "plugins": ("plugin:*", "mcp:*"),
}
"""The members of each group, as rules. `openclaw` and `plugins` match by the source of a tool."""

APART = frozenset({*GROUPS["fs"], "exec", "process", "canvas"})
"""Our own tools that `group:openclaw` leaves out: files, shell, canvas."""

KNOWN = frozenset(
    {"*", "bundle-mcp", "openclaw:*", "plugin:*", "mcp:*", "client:*", *ALIASES}.union(
        *GROUPS.values()
    )
)
"""Rules that are spelled correctly, even if they match no tool of a run."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a tool that rules are matched with, in lower case.

    Attributes:
        id: The exact id.
        name: The tool's own name.
        allow: Names by which a rule can allow the tool.
        deny: Names by which a rule can deny the tool.
    """

    id: str
    name: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]

    @classmethod
    def of(cls, tool: Tool) -> "Names":
        name = tool.name.casefold()
        owner = tool.owner.casefold()
        called = (name, ALIASES[name]) if name in ALIASES else (name,)
        if tool.source == "mcp":
            # The server chooses `name`, so only names with the server in front can allow the tool.
            servers = (owner, safe_server_name(owner))
            full = ("bundle-mcp", *(f"{server}__{name}" for server in servers))
            return cls(tool.id.casefold(), name, full, (*full, *called, *servers))
        if tool.source == "plugin":
            called = (*called, owner)
        return cls(tool.id.casefold(), name, called, called)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        text: The rule as written by the user.
        patterns: The patterns of the rule; several for a group.
        apart: Names of tools that the rule does not match.
    """

    text: str
    patterns: tuple[str, ...]
    apart: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, path: str = "") -> "Rule":
        """Parses a rule.

        Raises:
            ConfigurationError: The rule is empty, or names an unknown group.
        """
        folded = text.strip().casefold()
        if not folded:
            raise ConfigurationError(f"{path}: a rule is empty", path=path, expected="a tool name")
        if not folded.startswith("group:"):
            return cls(text, (ALIASES.get(folded, folded),))
        group = folded.removeprefix("group:")
        if group not in GROUPS:
            raise unknown_name(path, "tool group", group, GROUPS)
        return cls(text, GROUPS[group], APART if group == "openclaw" else frozenset())

    def allows(self, names: Names) -> bool:
        return self._matches(names, names.allow)

    def denies(self, names: Names) -> bool:
        return self._matches(names, names.deny)

    def _matches(self, names: Names, called: tuple[str, ...]) -> bool:
        # A pattern with a colon is matched with ids only, so that no tool can pass by a name that
        # looks like the id of another.
        return names.name not in self.apart and any(
            matches(pattern, known)
            for pattern in self.patterns
            for known in ((names.id,) if ":" in pattern else called)
        )


@dataclass(frozen=True, slots=True)
class UnmatchedRule:
    """A rule that matches no tool: a spelling mistake, or a rule for a tool that the run lacks.

    Attributes:
        path: Where the rule is set, such as `tools.deny`.
        rule: The rule as written by the user.
        nearest: The rule that was probably meant; empty if no tool has a similar name.
    """

    path: str
    rule: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{self.path}: {self.rule!r} matches no tool of this run{hint}"


def find_unmatched(
    rules: Iterable[str], tools: Sequence[Tool], path: str, *, allowing: bool = False
) -> list[UnmatchedRule]:
    """Finds the rules that match none of the tools, each with the nearest rule that would.

    Groups, and names of tools that this package knows, are left out: they are spelled correctly.

    Args:
        rules: Names, ids and patterns, as written by the user.
        tools: All tools of the run. Without any, no rule is reported.
        path: Where the rules are set, such as `tools.deny`.
        allowing: Whether the rules allow tools: a bare name does not allow an MCP tool.

    Raises:
        ConfigurationError: A rule is empty, or names a group that does not exist.
    """
    known = [Names.of(tool) for tool in tools]
    missing: list[Rule] = []
    for rule in parse_rules(rules, path):
        folded = rule.text.strip().casefold()
        if folded in KNOWN or folded.startswith("group:") or not tools:
            continue
        matching = rule.allows if allowing else rule.denies
        if not any(map(matching, known)):
            missing.append(rule)
    if not missing:
        return []
    # For an MCP tool the id is suggested, which is valid in every list.
    spelled = [tool.id if tool.source == "mcp" else tool.name for tool in tools]
    by_name, by_id = (
        NearNames([names.name for names in known]),
        NearNames([each.id for each in tools]),
    )
    found: list[UnmatchedRule] = []
    for rule in missing:
        near = (by_id if ":" in rule.text else by_name).find(rule.text.strip(), 1)
        shown = [tools[at].id if ":" in rule.text else spelled[at] for at in near]
        found.append(UnmatchedRule(path, rule.text, "".join(shown)))
    return found


def matches(pattern: str, name: str) -> bool:
    """True if a name matches a pattern with `*` for any text. Takes linear time, unlike `re`."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    if not name.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        at = name.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(name) - at >= len(rest[-1]) and name.endswith(rest[-1])


def safe_server_name(server: str) -> str:
    """Returns a server's name as it appears before `__` in the names of its tools."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", server)
    return safe if re.match(r"[A-Za-z]", safe) else f"mcp-{safe}"


def parse_rules(texts: Iterable[str], path: str) -> tuple[Rule, ...]:
    """Parses several rules; `path` is where they are set, for errors."""
    return tuple(Rule.parse(text, path) for text in texts)


def unknown_name(path: str, what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Returns the error for a name that is not one of the known ones."""
    expected = "one of " + ", ".join(known)
    return ConfigurationError(
        f"{path}: there is no {what} {name!r}; {expected}", path=path, expected=expected
    )
