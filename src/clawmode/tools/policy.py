"""Which tools a run may use: layers of allow and deny lists, applied to the tools of a run.

A tool must pass every layer that is set, and inside of a layer deny wins. `rules` defines how a
rule names tools. The functions here decide and change nothing; `executor` asks before every call.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.tools.rules import (
    SESSIONS,
    Names,
    Rule,
    UnmatchedRule,
    find_unmatched,
    parse_rules,
    unknown_name,
)
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue, dataclass

IMPLIED = {"write": "apply_patch"}
"""A rule that allows the left tool also allows the right one. To deny, both must be named."""

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
"""The rules of a sandbox that sets no `allow`: no tools of plugins and MCP servers."""

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
"""The layers in their order, and the setting of each."""


@dataclass(frozen=True, slots=True)
class PolicyLayer:
    """One layer: a tool passes if no rule denies it, and every list that is set allows it.

    Attributes:
        name: The name of the layer, for people.
        allow: The tools that pass; all if None, none if empty.
        also_allow: Tools that pass in addition to the profile's. No effect without a profile.
        deny: The tools that do not pass, even if another list allows them.
        profile: The name of a list in `PROFILES`.

    Raises:
        ConfigurationError: `allow` and `also_allow` are both set, or a name is unknown.
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
            if isinstance(rules, str):  # would be read as a sequence of letters
                raise _no_list(f"{path}.{key}")
        if self.allow is not None and self.also_allow:
            raise ConfigurationError(
                f"{path}: allow and alsoAllow exclude each other; "
                "put everything into allow, or use a profile and alsoAllow",
                path=path,
                expected="one of allow and alsoAllow",
            )
        # Parsed here, so that a wrong rule is an error at the start, not at the first call.
        lists: list[tuple[str, tuple[Rule, ...]]] = []
        if self.profile is not None:
            folded = self.profile.strip().casefold()
            if folded not in PROFILES:
                raise unknown_name(path, "profile", self.profile, PROFILES)
            if (profile := PROFILES[folded]) is not None:  # None: all tools pass
                listed = _parse_allowing((*profile, *self.also_allow), path)
                lists.append((f"profile {self.profile!r}", listed))
        if self.allow is not None:
            lists.append(("allow", _parse_allowing(self.allow, path)))
        object.__setattr__(self, "_denied", parse_rules(self.deny, path))
        object.__setattr__(self, "_lists", tuple(lists))

    def why_denied(self, names: Names) -> str | None:
        """Returns why a tool does not pass this layer; None if it does."""
        where = f"the {self.name} policy ({SCOPES.get(self.name, self.name)})"
        for rule in self._denied:
            if rule.denies(names):
                return f"{where} denies {rule.text!r}"
        for what, rules in self._lists:
            if not any(rule.allows(names) for rule in rules):
                return f"{where} does not name it in {what}"
        return None

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """Returns the rules of this layer that match none of the tools."""
        path = "tools" if self.name == "profile" else SCOPES.get(self.name, self.name)
        return [
            *find_unmatched(self.allow or (), tools, f"{path}.allow", allowing=True),
            *find_unmatched(self.also_allow, tools, f"{path}.alsoAllow", allowing=True),
            *find_unmatched(self.deny, tools, f"{path}.deny"),
        ]


@dataclass(frozen=True, slots=True)
class Policy:
    """The tools that a run may use: those that pass every layer. Without layers, all pass."""

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
            agent: The settings of the agent. Its profile, if set, replaces the global one;
                otherwise its `alsoAllow` adds to the global profile.
            provider: The settings for the model's provider.
            model: The settings for the model.
            channel: The settings of the channel that the request came from.
            sender: The settings for the sender of the request.
            sandbox: `tools.sandbox.tools` for a sandboxed agent, `{}` if that is not set. Without
                `allow`, our own tools and the client's pass, and those of `alsoAllow`, such as
                `bundle-mcp`.

        Raises:
            ConfigurationError: A setting is invalid; the message says which.
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
        # One layer for the profiles of the global and the agent's layer: as two, an agent's profile
        # could only narrow the global one, and not replace it.
        outer = layers.get("global", PolicyLayer("global"))
        inner = layers.get("agent", PolicyLayer("agent"))
        arranged: list[PolicyLayer] = []
        if inner.profile is not None or outer.profile is not None:
            both = outer.also_allow + inner.also_allow
            also = both if inner.profile is None else inner.also_allow
            profile = inner.profile or outer.profile
            arranged.append(PolicyLayer("profile", also_allow=also, profile=profile))
        for name, layer in layers.items():
            is_merged = name in ("global", "agent")
            arranged.append(replace(layer, profile=None, also_allow=()) if is_merged else layer)
        return cls(tuple(arranged))

    def effective(self, tools: Iterable[Tool]) -> list[Tool]:
        """Returns the tools that pass, in their order."""
        return [tool for tool in tools if self.why_denied(tool) is None]

    def why_denied(self, tool: Tool) -> str | None:
        """Returns why a tool does not pass, with layer and rule; None if it does."""
        if not self.layers:
            return None
        names = Names.of(tool)
        for layer in self.layers:
            if (reason := layer.why_denied(names)) is not None:
                return reason
        return None

    def unmatched(self, tools: Sequence[Tool]) -> list[UnmatchedRule]:
        """Returns the rules that match none of the tools, in the order of the layers."""
        return [found for layer in self.layers for found in layer.unmatched(tools)]


def _layer(name: str, settings: Config) -> PolicyLayer:
    path = SCOPES[name]
    for key in settings:
        if key not in KEYS:
            raise unknown_name(path, "setting", key, KEYS)
    allow = _rules(settings, "allow", path)
    also_allow = _rules(settings, "alsoAllow", path) or ()
    profile = settings.get("profile")
    if not isinstance(profile, str | None):
        where = f"{path}.profile"
        text = f"{where} is not a text; expected the name of a profile"
        raise ConfigurationError(text, path=where, expected="a profile's name")
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


def _parse_allowing(texts: Iterable[str], path: str) -> tuple[Rule, ...]:
    """Parses rules of an allow list, with the tools that they imply."""
    rules = parse_rules(texts, path)
    implied = [IMPLIED[rule.patterns[0]] for rule in rules if rule.patterns[0] in IMPLIED]
    return rules + parse_rules(implied, path)
