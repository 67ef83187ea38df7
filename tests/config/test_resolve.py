"""The whole configuration: its sections, what they say for an agent, and the page about them."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode import Policy, Tool
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.agents import AgentOptions, Configuration, ModelChoice
from clawmode.config.resolve import (
    agent,
    default_agent,
    max_concurrent,
    policy,
    read,
    schema,
    tools,
)
from clawmode.exceptions import ConfigurationError
from clawmode.records import (
    member_schema,
)
from clawmode.sections import (
    keys_of,
)
from clawmode.tools.tool import ToolSource
from clawmode.tools.validation import Validator
from clawmode.types import JsonObject, JsonValue

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "config.md").read_text("utf-8")


def load(data: JsonObject) -> Configuration:
    found = read(data)
    assert (found.errors, found.warnings) == ([], [])
    return found.section


def refused(data: JsonObject) -> list[str]:
    return [error.path for error in read(data).errors]


def warned(data: JsonObject) -> list[str]:
    found = read(data)
    assert found.errors == []
    return [warning.path for warning in found.warnings]


def agents(*listed: JsonObject, **defaults: JsonValue) -> JsonObject:
    entries: list[JsonValue] = list(listed)
    return {"agents": {"defaults": defaults, "list": entries}}


# ---- Code mode ----

DATA: JsonObject = {
    "tools": {"codeMode": {"enabled": True, "timeoutMs": 500}, "allow": ["*"]},
    "agents": {
        "list": [
            {"id": "plain"},
            {"id": "off", "tools": {"codeMode": False}},
            {"id": "slow", "tools": {"codeMode": {"timeoutMs": 60_001}}},
        ]
    },
}


@pytest.mark.covers("CF-4")
@pytest.mark.parametrize(
    ("agent_id", "enabled", "timeout_ms"),
    [
        (None, True, 500),
        ("unlisted", True, 500),
        ("plain", True, 500),
        ("off", False, 500),
        ("slow", True, 60_000),
    ],
)
def test_an_agent_has_its_own_code_mode_over_the_global_one(
    agent_id: str | None, enabled: bool, timeout_ms: int
) -> None:
    config = tools(read(DATA).unwrap(), agent_id).code_mode
    assert (config.enabled, config.timeout_ms) == (enabled, timeout_ms)


@pytest.mark.covers("CF-4", "CF-5", "CF-6")
def test_warnings_and_errors_of_an_agent_name_its_place_in_the_list() -> None:
    assert warned(DATA) == ["agents.list[2].tools.codeMode.timeoutMs"]
    assert refused(agents({"id": "a"}, {"id": "b", "tools": {"codeMode": "on"}})) == [
        "agents.list[1].tools.codeMode"
    ]


@pytest.mark.covers("CF-6")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"tools": True}, "tools"),
        ({"tools": None}, "tools"),
        ({"agents": []}, "agents"),
        ({"agents": {"list": {}}}, "agents.list"),
        ({"agents": {"list": [7]}}, "agents.list[0]"),
        ({"agents": {"list": [{}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": ""}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": 1}]}}, "agents.list[0].id"),
        ({"agents": {"list": [{"id": "a", "tools": 1}]}}, "agents.list[0].tools"),
        ({"agents": {"list": [{"id": "a"}, {"id": "a"}]}}, "agents.list[1].id"),
        (
            {"agents": {"list": [{"id": "a", "default": True}, {"id": "b", "default": True}]}},
            "agents.list[1].default",
        ),
        ({"gateway": "on"}, "gateway"),
        ({"session": {"writeLock": {"acquireTimeoutMs": "1m"}}}, "session.writeLock.acquireT"),
        ({"messages": {"queue": {"mode": "queue"}}}, "messages.queue.mode"),
        ({"messages": {"queue": {"byChannel": {"x": "y"}}}}, "messages.queue.byChannel.x"),
    ],
)
def test_a_wrong_type_is_an_error_with_its_place(data: JsonObject, path: str) -> None:
    (found,) = refused(data)
    assert found.startswith(path)


@pytest.mark.covers("CF-5")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"tools": {"codemode": True}}, "tools.codemode"),
        ({"tools": {"code-mode": True}}, 'tools["code-mode"]'),
        ({"tool": {"codeMode": True}}, "tool"),
        ({"agent": {"list": []}}, "agent"),
        ({"codeMode": True}, "codeMode"),
        ({"agents": {"list": [{"id": "a", "codeMode": True}]}}, "agents.list[0].codeMode"),
        ({"agents": {"default": {}}}, "agents.default"),
        ({"agents": {"defaults": {"timeout": 5}}}, "agents.defaults.timeout"),
        ({"models": {"provider": {}}}, "models.provider"),
        ({"diagnostics": {"stuckWarnMs": 1}}, "diagnostics.stuckWarnMs"),
    ],
)
def test_a_key_that_nobody_reads_is_a_warning_anywhere(data: JsonObject, path: str) -> None:
    assert warned(data) == [path]
    assert not tools(read(data).unwrap()).code_mode.enabled


def test_sections_of_others_are_left_alone_or_named_as_unused() -> None:
    load(
        {
            "$schema": "./schema.json",
            "gateway": {"port": 1},
            "mcp": {"servers": 5},
            "tools": {"allow": [], "sandbox": {}, "toolSearch": True},
            "agents": {"defaults": {}, "list": [{"id": "a", "name": "A", "model": "m"}]},
        }
    )
    (warning,) = read({"browser": {"enabled": True}}).warnings
    assert str(warning) == "browser: is not used by clawmode"


# ---- Agents ----


def test_without_a_file_there_is_one_agent_with_the_pages_defaults() -> None:
    found = agent(Configuration())
    assert (found.id, found.model.primary, found.model.fallbacks) == ("main", None, ())
    assert found.timeout_seconds == 172_800
    assert "timeout_seconds" not in found.model_fields_set
    assert (found.thinking, found.verbose, found.max_turns) == ("off", "off", 500)
    compaction = found.compaction
    assert compaction.enabled
    assert (compaction.reserve_tokens, compaction.keep_recent_tokens) == (16_384, 20_000)
    assert found.sandbox.mode == "off"
    assert found.tools.code_mode == CodeModeConfig()
    assert max_concurrent(Configuration()) == max(8, 4 * (os.cpu_count() or 1))


def test_an_agent_has_its_own_settings_over_those_of_all_field_by_field() -> None:
    configuration = load(
        agents(
            {
                "id": "own",
                "name": "Own",
                "model": "p/own",
                "thinking": "high",
                "timeoutSeconds": 60,
                "compaction": {"reserveTokens": 0},
                "sandbox": {"workspaceRoot": "/sandboxes"},
            },
            {"id": "none", "model": {"fallbacks": []}},
            model={"primary": "p/m", "fallbacks": ["p/n"]},
            thinking="low",
            workspace="~/work",
            maxTurns=7,
            maxConcurrent=3,
            compaction={"keepRecentTokens": 5, "enabled": False},
            sandbox={"mode": "non-main"},
        )
    )
    own = agent(configuration, "own")
    assert (own.name, own.model) == ("Own", ModelChoice(primary="p/own", fallbacks=("p/n",)))
    assert (own.thinking, own.max_turns, own.workspace) == ("high", 7, "~/work")
    assert own.timeout_seconds == 60
    assert {"timeout_seconds", "max_turns"} <= own.model_fields_set
    assert "verbose" not in own.model_fields_set
    compaction = own.compaction
    assert (compaction.reserve_tokens, compaction.keep_recent_tokens) == (0, 5)
    assert not compaction.enabled
    assert own.sandbox.workspace_root == "/sandboxes"
    assert own.sandbox.mode == "non-main"
    none = agent(configuration, "none")
    assert (none.model.primary, none.model.fallbacks, none.thinking) == ("p/m", (), "low")
    assert agent(configuration, "main").model.primary == "p/m"
    assert max_concurrent(configuration) == 3


def test_an_agent_that_is_not_listed_is_an_error_with_those_that_are() -> None:
    configuration = load(agents({"id": "ann"}, {"id": "bob"}))
    with pytest.raises(ConfigurationError, match='there is no agent "bo", expected one of "main"'):
        agent(configuration, "bo")
    assert agent(configuration, "bob").id == "bob"


def test_the_default_agent_is_the_one_that_says_so_else_main() -> None:
    assert default_agent(load(agents({"id": "ann"}))) == "main"
    configuration = load(agents({"id": "ann"}, {"id": "bob", "default": True, "name": "Bob"}))
    assert default_agent(configuration) == "bob"
    assert agent(configuration).name == "Bob"


# ---- Numbers ----


@pytest.mark.parametrize(
    ("section", "key", "default", "low", "high"),
    [
        ("session.writeLock", "acquireTimeoutMs", 60_000, 1, 3_600_000),
        ("messages.queue", "cap", 20, 1, 1000),
        ("messages.queue", "debounceMs", 500, 0, 60_000),
        ("diagnostics", "stuckSessionWarnMs", 120_000, 1000, 86_400_000),
        ("agents.defaults", "maxConcurrent", 0, 0, 10_000),
    ],
)
def test_a_number_has_its_default_and_stays_in_its_range(
    section: str, key: str, default: int, low: int, high: int
) -> None:
    def used(value: JsonValue) -> object:
        data: JsonValue = {} if value is None else {key: value}
        for part in reversed(section.split(".")):
            data = {part: data}
        found: Any = read(data).section
        for part in (*section.split("."), key):
            found = getattr(found, re.sub("([A-Z])", lambda match: "_" + match[1].lower(), part))
        return found

    assert [used(it) for it in (None, low, high, high + 1, -1)] == [
        default,
        low,
        high,
        high,
        default,
    ]


def test_a_timeout_of_an_agent_is_from_a_second_to_a_year() -> None:
    assert agent(read(agents(timeoutSeconds=10**9)).unwrap()).timeout_seconds == 31_536_000
    found = agent(read(agents(timeoutSeconds=0)).unwrap())
    assert found.timeout_seconds == 172_800
    assert "timeout_seconds" not in found.model_fields_set


def test_a_stuck_run_is_aborted_late_unless_it_is_said_when() -> None:
    def abort(**diagnostics: JsonValue) -> int:
        return load({"diagnostics": diagnostics}).diagnostics.abort_ms()

    assert abort() == 360_000
    assert abort(stuckSessionWarnMs=10_000) == 300_000
    assert abort(stuckSessionAbortMs=2000) == 2000


# ---- Models and keys ----


def test_a_provider_says_how_it_is_reached_and_where_its_key_is() -> None:
    configuration = load(
        {
            "models": {
                "providers": {
                    "lab": {
                        "baseUrl": "http://localhost:8000/v1",
                        "api": "openai-completions",
                        "auth": {"command": ["pass", "show", "lab"]},
                        "headers": {"x-team": "blue"},
                        "timeoutSeconds": 600,
                        "local": True,
                        "models": [
                            {
                                "id": "m",
                                "contextWindow": 8192,
                                "maxTokens": 1024,
                                "reasoning": False,
                                "input": ["text", "image"],
                            }
                        ],
                    }
                }
            },
            "auth": {"profiles": {"work": {"provider": "lab", "env": "LAB_KEY"}}},
        }
    )
    lab = configuration.models.providers["lab"]
    assert lab.auth is not None
    assert (lab.api, lab.timeout_seconds, lab.local) == ("openai-completions", 600, True)
    assert (lab.auth.command, lab.headers) == (("pass", "show", "lab"), {"x-team": "blue"})
    assert (lab.models[0].context_window, lab.models[0].input) == (8192, ("text", "image"))
    assert configuration.auth.profiles["work"].env == "LAB_KEY"


SECRET = "sk-live-0123456789"


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"models": {"providers": {"x": SECRET}}}, "models.providers.x"),
        ({"models": {"providers": {"x": {"apiKey": [SECRET]}}}}, "models.providers.x.apiKey"),
        ({"models": {"providers": {"x": {"auth": SECRET}}}}, "models.providers.x.auth"),
        ({"models": {"providers": {"x": {"auth": {}}}}}, "models.providers.x.auth"),
        (
            {"models": {"providers": {"x": {"auth": {"env": SECRET}}}}},
            "models.providers.x.auth.env",
        ),
        ({"models": {"providers": {"x": {"baseUrl": SECRET}}}}, "models.providers.x.baseUrl"),
        (
            {"models": {"providers": {"x": {"apiKey": SECRET, "auth": {"env": "A"}}}}},
            "models.providers.x",
        ),
        (
            {"models": {"providers": {"x": {"headers": {"authorization": [SECRET]}}}}},
            "models.providers.x.headers.authorization",
        ),
        ({"auth": {"profiles": {"w": {"provider": "x"}}}}, "auth.profiles.w"),
        (
            {"auth": {"profiles": {"w": {"provider": "x", "key": SECRET, "env": "A"}}}},
            "auth.profiles.w",
        ),
        ({"auth": {"profiles": {"w": {"key": SECRET}}}}, "auth.profiles.w.provider"),
        ({"gateway": SECRET}, "gateway"),
    ],
)
def test_a_key_that_cannot_be_meant_is_an_error_that_does_not_tell_it(
    section: JsonObject, path: str
) -> None:
    (error,) = read(section).errors
    assert error.path == path
    assert SECRET not in str(error)


def test_a_configuration_can_be_logged() -> None:
    configuration = load(
        {
            "models": {"providers": {"x": {"apiKey": SECRET, "headers": {"a": SECRET}}}},
            "auth": {"profiles": {"w": {"provider": "x", "key": SECRET}}},
            "gateway": {"auth": {"token": SECRET}},
            "mcp": {"servers": {"s": {"env": {"TOKEN": SECRET}}}},
        }
    )
    assert SECRET not in repr(configuration)


# ---- Policy ----


def tool(name: str, source: ToolSource = "openclaw", owner: str = "") -> Tool:
    return Tool(
        name, "", {"type": "object"}, lambda given, context: None, source=source, owner=owner
    )


TOOLS = [tool("read"), tool("exec"), tool("create_issue", "mcp", "github")]


def passing(made: Policy) -> list[str]:
    return [each.name for each in made.effective(TOOLS)]


def test_rules_of_all_and_of_the_agent_narrow_each_other() -> None:
    configuration = load(
        {
            "tools": {
                "deny": ["exec"],
                "byProvider": {"lab": {"deny": ["read"]}, "lab/m": {"allow": ["read"]}},
                "toolsBySender": {"id:ann": {"deny": ["read"]}, "*": {"deny": ["bundle-mcp"]}},
            },
            "agents": {
                "list": [{"id": "a", "tools": {"byProvider": {"other": {"allow": []}}}}],
            },
        }
    )
    assert passing(policy(configuration)) == ["read"]
    assert passing(policy(configuration, sender=["id:ann"])) == ["create_issue"]
    assert passing(policy(configuration, sender=["id:bob"])) == ["read"]
    assert passing(policy(configuration, provider="lab", model="n")) == []
    assert passing(policy(configuration, provider="other")) == ["read"]
    assert passing(policy(configuration, "a", provider="other")) == []


@pytest.mark.covers("CM-config-bundle-mcp")
def test_a_sandboxed_agent_gets_mcp_tools_only_if_its_sandbox_policy_says_bundle_mcp() -> None:
    admits: JsonObject = {"sandbox": {"tools": {"alsoAllow": ["bundle-mcp"]}}}
    boxed: JsonObject = {"mode": "all"}
    configuration = load(
        agents(
            {"id": "free", "sandbox": {"mode": "off"}},
            {"id": "boxed"},
            {"id": "admitted", "tools": admits},
            sandbox=boxed,
        )
    )

    def gets(configuration: Configuration, agent_id: str) -> list[str]:
        sandboxed = agent(configuration, agent_id).sandbox.mode == "all"
        return passing(policy(configuration, agent_id, sandboxed=sandboxed))

    assert gets(configuration, "free") == ["read", "exec", "create_issue"]
    assert gets(configuration, "boxed") == ["read", "exec"]
    assert gets(configuration, "admitted") == ["read", "exec", "create_issue"]
    everywhere = load(agents(sandbox=boxed) | {"tools": admits})
    assert gets(everywhere, "main") == ["read", "exec", "create_issue"]


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ({"allow": ["read", "group:nope"]}, "tools.allow[1]"),
        ({"alsoAllow": ["group:nope"]}, "tools.alsoAllow[0]"),
        ({"deny": ["read", ""]}, "tools.deny[1]"),
        ({"allow": "read"}, "tools.allow"),
        ({"allow": None}, "tools.allow"),
        ({"profile": "none"}, "tools.profile"),
        ({"allow": ["read"], "alsoAllow": ["exec"]}, "tools"),
        ({"byProvider": {"lab": {"deny": ["group:x"]}}}, "tools.byProvider.lab.deny[0]"),
        ({"sandbox": {"tools": {"profile": "x"}}}, "tools.sandbox.tools.profile"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_an_error_at_its_place(tools: JsonObject, path: str) -> None:
    assert refused({"tools": tools}) == [path]
    assert refused(agents({"id": "a", "tools": tools})) == [f"agents.list[0].{path}"]


# ---- Any file ----

ODD: st.SearchStrategy[JsonValue] = st.sampled_from(
    [None, True, False, 0, 1.5, 10**6, "", "a", "timeoutMs", [], {}, ["a"], {"codeMode": 1}]
)


SCHEMA_DATA = schema()
SCHEMA = Validator(SCHEMA_DATA)


def shaped(node: Mapping[str, Any]) -> st.SearchStrategy[JsonValue]:
    """Values that are similar to the values that a schema accepts, and others."""
    if members := node.get("properties"):
        known = {key: shaped(member_schema(SCHEMA_DATA, node, key)) for key in members}
        some = st.fixed_dictionaries({}, optional={**known, "tool": ODD})
        return some.map(dict[str, JsonValue]) | ODD
    if node.get("type") == "array":
        items = shaped(member_schema(SCHEMA_DATA, node, 0))
        return st.lists(items, max_size=2).map(list[JsonValue]) | ODD
    if node.get("additionalProperties") not in (None, True):
        entry = shaped(member_schema(SCHEMA_DATA, node, "a"))
        inner = st.dictionaries(st.sampled_from(["", "a", "b"]), entry)
        return inner.map(dict[str, JsonValue]) | ODD
    choices: list[JsonValue] = node.get("enum", [])
    return st.sampled_from(choices) | ODD if choices else ODD


@examples(200, derandomize=True)
@given(data=shaped(SCHEMA_DATA))
def test_any_file_is_a_configuration_or_errors_with_places(data: JsonValue) -> None:
    found = read(data)
    assert all(warning.message for warning in found.warnings)
    if found.errors:
        assert isinstance(data, dict) <= all(error.path for error in found.errors)
        return
    for agent_id in (None, *(entry.id for entry in found.section.agents.list)):
        assert 100 <= agent(found.section, agent_id).tools.code_mode.timeout_ms <= 60_000
        policy(found.section, agent_id, provider="a", sandboxed=True)


@examples(100, derandomize=True)
@given(data=shaped(SCHEMA_DATA))
def test_what_the_schema_takes_has_no_errors_but_those_about_the_whole(data: JsonValue) -> None:
    whole = ("one of", "already", "tool group", "profile", "exclude", "address", "variable")
    if SCHEMA.validate(data) == []:
        told = [str(error) for error in read(data).errors]
        assert [text for text in told if not any(word in text for word in whole)] == []


# ---- The page ----

SHARED = {
    **{f"agents.list[].{key}": f"agents.defaults.{key}" for key in keys_of(AgentOptions)},
    "agents.list[].tools.": "tools.",
}
"""What is documented where it stands first."""


def settings_of(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every setting below a section that has a value of its own, by its path."""
    for key in node["properties"]:
        here = f"{path}.{key}" if path else key
        inner = member_schema(SCHEMA_DATA, node, key)
        if "properties" in (entry := member_schema(SCHEMA_DATA, inner, 0)):
            inner, here = entry, f"{here}[]"
        elif "properties" in (entry := member_schema(SCHEMA_DATA, inner, "<id>")):
            inner, here = entry, f"{here}.<id>"
        if "properties" in inner:
            yield from settings_of(inner, here)
        else:
            yield here, inner


def documented_at(path: str) -> str:
    for here, there in SHARED.items():
        if path == here or path.startswith((here + ".", here if here.endswith(".") else "\0")):
            path = there + path[len(here) :]
    rules = re.sub(r"^tools\.(byProvider\.<id>|toolsBySender\.<id>|sandbox\.tools)\.", "", path)
    return path if rules == path else f"tools.{rules}"


# Two sections have a table of their own, which other tests compare.
SETTINGS = {
    documented_at(path): node for path, node in settings_of(SCHEMA_DATA) if "codeMode" not in path
}


@pytest.mark.parametrize("path", sorted(SETTINGS))
def test_every_setting_is_documented_with_its_default_and_range(path: str) -> None:
    page = re.sub(r"(?s)\n##+ `tools.codeMode`\n.*?(?=\n##)", "", PAGE)  # it has a `state` too
    rows = re.findall(rf"^\| (?:[^|]*, )?`{re.escape(path)}`[^|]*\|.*$", page, re.MULTILINE)
    assert len(rows) == 1, path
    about = SETTINGS[path]
    if "minimum" in about:
        assert f"| {about['minimum']} to {about['maximum']} |" in rows[0]
    default = about.get("default")
    if isinstance(default, int) and not isinstance(default, bool):
        assert f"| {default} |" in rows[0]
