"""Which tools a run may use: layers of allow and deny, tools in, effective tools out.

A tool must pass every layer that is set, and in a layer deny wins. Rules name a tool, a plugin, a
group, or several by `*`, in any case. What an MCP server calls its tools is its own choice, so a
bare name never allows one: `<server>__<tool>`, an id or `bundle-mcp` does. To deny, it is enough.

Plain decisions about plain data; `executor` asks before every call.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue

ALIASES = {"bash": "exec"}

IMPLIED = {"write": "apply_patch"}
"""Who may write files may patch them. Who may not write them must be denied both."""

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
"""The members, as rules. Those of `openclaw` and `plugins` are known by where a tool comes from."""

APART = frozenset({*GROUPS["fs"], "exec", "process", "canvas"})
"""Of our own tools, those that `group:openclaw` leaves out: files, shell, canvas."""

PROFILES: dict[str, tuple[str, ...] | None] = {
    "minimal": ("session_status",),
    "coding": (
        "group:fs",
        "group:runtime",
        "group:web",
        "group:sessions",
        "group:memory",
        "cron",
        "get_goal",
        "create_goal",
        "update_goal",
        "update_plan",
        "ask_user",
        "skill_workshop",
        "image",
        "view_image",
        "image_generate",
        "music_generate",
        "video_generate",
        "bundle-mcp",
    ),
    "messaging": ("group:messaging", *SESSIONS, "ask_user", "bundle-mcp"),
    "full": None,
}

SANDBOX_BASE = ("openclaw:*", "client:*")
"""What a sandbox lets through unasked: not what belongs to a plugin or an MCP server."""

KNOWN = frozenset(
    {"*", "bundle-mcp", "openclaw:*", "plugin:*", "mcp:*", "client:*", *ALIASES}.union(
        *GROUPS.values()
    )
)
"""Rules that are no typing mistakes, even in a run without such a tool."""

Config: TypeAlias = Mapping[str, JsonValue]
"""`{"profile": "coding", "allow": [...], "alsoAllow": [...], "deny": [...]}`, all optional."""

KEYS = ("allow", "alsoAllow", "deny", "profile")

SCOPES = {
    "profile": "tools.profile",
    "global": "tools",
    "agent": "agents.list[].tools",
    "provider": "tools.byProvider",
    "model": "tools.byProvider",
    "channel": "channels.*.tools",
    "sender": "tools.toolsBySender",
    "sandbox": "tools.sandbox.tools",
}
"""The layers in their order, and where each is set."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a tool goes by, in lower case.

    Attributes:
        id: Its exact id.
        name: What it calls itself.
        allow: What a rule may say to allow it.
        deny: What a rule may say to deny it.
    """

    id: str
    name: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]

    @classmethod
    def of(cls, tool: Tool) -> "Names":
        """The names of a tool."""
        name = tool.name.casefold()
        owner = tool.owner.casefold()
        called = (name, ALIASES[name]) if name in ALIASES else (name,)
        if tool.source == "mcp":
            servers = (owner, safe_server_name(owner))
            full = ("bundle-mcp", *(f"{server}__{name}" for server in servers))
            return cls(tool.id.casefold(), name, full, (*full, *called, *servers))
        if tool.source == "plugin":
            called = (*called, owner)
        return cls(tool.id.casefold(), name, called, called)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was written, and the patterns that it stands for."""

    text: str
    patterns: tuple[str, ...]
    apart: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, path: str = "") -> "Rule":
        """Reads a rule.

        Raises:
            ConfigurationError: It is empty, or a group that nobody knows.
        """
        folded = text.strip().casefold()
        if not folded:
            raise ConfigurationError(f"{path}: a rule is empty", path=path, expected="a tool name")
        if not folded.startswith("group:"):
            return cls(text, (ALIASES.get(folded, folded),))
        group = folded.removeprefix("group:")
        if group not in GROUPS:
            raise _unknown(path, "tool group", group, GROUPS)
        return cls(text, GROUPS[group], APART if group == "openclaw" else frozenset())

    def allows(self, names: Names) -> bool:
        """Whether it lets such a tool through."""
        return self._matches(names, names.allow)

    def denies(self, names: Names) -> bool:
        """Whether it keeps such a tool out."""
        return self._matches(names, names.deny)

    def _matches(self, names: Names, called: tuple[str, ...]) -> bool:
        # A colon makes it an id: a tool whose name looks like one does not get there.
        return names.name not in self.apart and any(
            matches(pattern, known)
            for pattern in self.patterns
            for known in ((names.id,) if ":" in pattern else called)
        )


@dataclass(frozen=True, slots=True)
class UnmatchedRule:
    """A rule that matches no tool: a typing mistake, or a guard for a tool that is not there.

    Attributes:
        path: Where the rule is set, such as `tools.deny`.
        rule: The rule as it was written.
        nearest: The rule that was probably meant; empty if no tool has a similar name.
    """

    path: str
    rule: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{self.path}: {self.rule!r} matches no tool of this run{hint}"


@dataclass(frozen=True, slots=True)
class PolicyLayer:
    """One layer: a tool passes if nothing in it denies it, and all lists that are set allow it.

    Attributes:
        name: Which layer it is, for people.
        allow: What passes; everything if it is None, nothing if it is empty.
        also_allow: What passes besides the profile; without one, it changes nothing.
        deny: What does not pass, whatever else is said.
        profile: The name of a list of tools, see `PROFILES`.

    Raises:
        ConfigurationError: `allow` and `also_allow` are both set, or a name is not known.
    """

    name: str
    allow: tuple[str, ...] | None = None
    also_allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    profile: str | None = None
    _denied: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    _lists: tuple[tuple[str, tuple[Rule, ...]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = SCOPES.get(self.name, self.name)
        for key, rules in (
            ("allow", self.allow),
            ("alsoAllow", self.also_allow),
            ("deny", self.deny),
        ):
            if isinstance(rules, str):  # a sequence too, of letters
                raise _no_list(f"{path}.{key}")
        if self.allow is not None and self.also_allow:
            raise ConfigurationError(
                f"{path}: allow and alsoAllow exclude each other; "
                "put everything into allow, or use a profile and alsoAllow",
                path=path,
                expected="one of allow and alsoAllow",
            )
        lists: list[tuple[str, tuple[Rule, ...]]] = []
        if (profile := _profile(self.profile, path)) is not None:
            listed = _parse_allowing((*profile, *self.also_allow), path)
            lists.append((f"profile {self.profile!r}", listed))
        if self.allow is not None:
            lists.append(("allow", _parse_allowing(self.allow, path)))
        object.__setattr__(self, "_denied", _parse(self.deny, path))
        object.__setattr__(self, "_lists", tuple(lists))

    def why_denied(self, names: Names) -> str | None:
        """Why such a tool does not pass; None if it does."""
        where = f"the {self.name} policy ({SCOPES.get(self.name, self.name)})"
        for rule in self._denied:
            if rule.denies(names):
                return f"{where} denies {rule.text!r}"
        for what, rules in self._lists:
            if not any(rule.allows(names) for rule in rules):
                return f"{where} does not name it in {what}"
        return None

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """The rules of this layer that match none of these tools."""
        path = "tools" if self.name == "profile" else SCOPES.get(self.name, self.name)
        return [
            *find_unmatched(self.allow or (), tools, f"{path}.allow", allowing=True),
            *find_unmatched(self.also_allow, tools, f"{path}.alsoAllow", allowing=True),
            *find_unmatched(self.deny, tools, f"{path}.deny"),
        ]


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run may use: a tool must pass every layer. Without layers, everything passes."""

    layers: tuple[PolicyLayer, ...] = ()

    @classmethod
    def from_config(
        cls,
        config: Config | None = None,
        *,
        agent: Config | None = None,
        provider: Config | None = None,
        model: Config | None = None,
        channel: Config | None = None,
        sender: Config | None = None,
        sandbox: Config | None = None,
    ) -> "Policy":
        """Reads the settings that apply to a run; None is a scope without settings.

        Args:
            config: The global `tools`.
            agent: Those of the agent. Its profile, if it has one, replaces the global one;
                else its `alsoAllow` adds to it.
            provider: Those for the provider of the model.
            model: Those for the model.
            channel: Those of the channel that the run was asked for in.
            sender: Those for who asked.
            sandbox: `tools.sandbox.tools` for a sandboxed agent, `{}` if that is not set: without
                `allow` it lets our own and the client's tools through, and what `alsoAllow` adds,
                such as `bundle-mcp`.

        Raises:
            ConfigurationError: Something in it cannot be meant.
        """
        given = {
            "global": config,
            "agent": agent,
            "provider": provider,
            "model": model,
            "channel": channel,
            "sender": sender,
            "sandbox": sandbox,
        }
        layers = {
            name: _layer(name, settings) for name, settings in given.items() if settings is not None
        }
        return cls(tuple(_arrange(layers)))

    def effective(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools that pass, in their order."""
        return [tool for tool in tools if self.why_denied(tool) is None]

    def why_denied(self, tool: Tool) -> str | None:
        """Why a tool does not pass, with the layer and the rule; None if it does."""
        names = Names.of(tool)
        for layer in self.layers:
            if (reason := layer.why_denied(names)) is not None:
                return reason
        return None

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """The rules that match none of a run's tools, in the order of the layers."""
        return [found for layer in self.layers for found in layer.unmatched(tools)]


def find_unmatched(
    rules: Iterable[str], tools: Sequence[Tool], path: str, *, allowing: bool = False
) -> list[UnmatchedRule]:
    """Finds the rules that match none of these tools, each with the nearest rule that would.

    Groups, and names of tools that this package knows, are left out: they are spelled correctly.

    Args:
        rules: Names, ids and patterns, as people write them.
        tools: All tools of the run. Without any, no rule is reported.
        path: Where the rules are set, such as `tools.deny`.
        allowing: Whether the rules allow tools: a bare name does not allow an MCP tool.

    Raises:
        ConfigurationError: A rule is empty, or names a group that does not exist.
    """
    known = [Names.of(tool) for tool in tools]
    missing: list[Rule] = []
    for rule in _parse(rules, path):
        folded = rule.text.strip().casefold()
        if folded in KNOWN or folded.startswith("group:") or not tools:
            continue
        matching = rule.allows if allowing else rule.denies
        if not any(map(matching, known)):
            missing.append(rule)
    if not missing:
        return []
    # An MCP tool is best named by its id, which is right in every list.
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
    """Whether a name fits a pattern in which `*` is any text. Takes linear time, unlike `re`."""
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
    """An MCP server's name as it stands before `__` in the names of its tools."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", server)
    return safe if re.match(r"[A-Za-z]", safe) else f"mcp-{safe}"


def _arrange(layers: dict[str, PolicyLayer]) -> Iterator[PolicyLayer]:
    """Puts the profile of the global and the agent's layer into one before them."""
    outer = layers.get("global", PolicyLayer("global"))
    agent = layers.get("agent", PolicyLayer("agent"))
    if agent.profile is not None:
        yield PolicyLayer("profile", also_allow=agent.also_allow, profile=agent.profile)
    elif outer.profile is not None:
        both = outer.also_allow + agent.also_allow
        yield PolicyLayer("profile", also_allow=both, profile=outer.profile)
    for name, layer in layers.items():
        yield replace(layer, profile=None, also_allow=()) if name in ("global", "agent") else layer


def _layer(name: str, settings: Config) -> PolicyLayer:
    path = SCOPES[name]
    for key in settings:
        if key not in KEYS:
            raise _unknown(path, "setting", key, KEYS)
    allow = _rules(settings, "allow", path)
    also_allow = _rules(settings, "alsoAllow", path) or ()
    profile = settings.get("profile")
    if not isinstance(profile, str | None):
        where = f"{path}.profile"
        raise ConfigurationError(f"{where} is not text", path=where, expected="a profile's name")
    if name == "sandbox" and allow is None:
        allow, also_allow = SANDBOX_BASE + also_allow, ()
    return PolicyLayer(name, allow, also_allow, _rules(settings, "deny", path) or (), profile)


def _rules(settings: Config, key: str, path: str) -> tuple[str, ...] | None:
    value = settings.get(key)
    if value is None:
        return None
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(texts) < len(value):
        raise _no_list(f"{path}.{key}")
    return tuple(texts)


def _no_list(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not a list of names", path=path, expected='a list such as ["read"]'
    )


def _parse(texts: Iterable[str], path: str) -> tuple[Rule, ...]:
    return tuple(Rule.parse(text, path) for text in texts)


def _parse_allowing(texts: Iterable[str], path: str) -> tuple[Rule, ...]:
    """The same, where to allow one tool is to allow another."""
    rules = _parse(texts, path)
    implied = [IMPLIED[rule.patterns[0]] for rule in rules if rule.patterns[0] in IMPLIED]
    return rules + _parse(implied, path)


def _profile(name: str | None, path: str) -> tuple[str, ...] | None:
    """The rules of a profile; None if everything passes."""
    if name is None:
        return None
    folded = name.strip().casefold()
    if folded not in PROFILES:
        raise _unknown(path, "profile", name, PROFILES)
    return PROFILES[folded]


def _unknown(path: str, what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    expected = "one of " + ", ".join(known)
    return ConfigurationError(
        f"{path}: there is no {what} {name!r}; {expected}", path=path, expected=expected
    )
