"""Which tools pass: rules, groups, profiles, layers, and settings that cannot be meant."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawmode.exceptions import ConfigurationError
from clawmode.tools.policy import PROFILES, SCOPES, Policy, PolicyLayer
from clawmode.tools.rules import GROUPS, UnmatchedRule, find_unmatched, matches
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonValue


def make(name: str, source: ToolSource = "openclaw", owner: str = "") -> Tool:
    return Tool(
        name, "", {"type": "object"}, lambda input, context: None, source=source, owner=owner
    )


READ = make("read")
WRITE = make("write")
PATCH = make("apply_patch")
SHELL = make("exec")
MESSAGE = make("message")
STATUS = make("session_status")
OWN = make("lookup_order")
BROWSE = make("browser_request", "plugin", "browser")
ISSUE = make("create_issue", "mcp", "github")
SELECT = make("select_file", "client")
ALL = [READ, WRITE, PATCH, SHELL, MESSAGE, STATUS, OWN, BROWSE, ISSUE, SELECT]


def passing(policy: Policy) -> list[str]:
    return [tool.name for tool in policy.effective(ALL)]


def allowed(*rules: JsonValue) -> list[str]:
    return passing(Policy.from_config({"allow": list(rules)}))


def denied(*rules: JsonValue) -> list[str]:
    left = passing(Policy.from_config({"deny": list(rules)}))
    return [tool.name for tool in ALL if tool.name not in left]


# ---- Rules ----


def test_without_layers_everything_passes_in_its_order() -> None:
    assert Policy().effective(ALL) == ALL
    assert Policy.from_config({}).effective(ALL) == ALL


@pytest.mark.covers("HK-5")
def test_deny_wins_over_allow() -> None:
    policy = Policy.from_config({"allow": ["*"], "deny": ["exec"]})
    assert "exec" not in passing(policy)
    assert passing(policy) == [tool.name for tool in ALL if tool is not SHELL]


@pytest.mark.covers("HK-5")
@pytest.mark.parametrize(
    "rule", ["read", "READ", " Read ", "re*", "*AD", "r*a*", "openclaw:core:*"]
)
def test_rules_match_in_any_case_and_with_stars(rule: str) -> None:
    assert "read" in allowed(rule)
    assert "read" in denied(rule)
    assert "message" not in allowed("read", "re*", "*AD", "r*a*")


@pytest.mark.parametrize("name", ["bash", "exec", "EXEC"])
@pytest.mark.parametrize("rule", ["bash", "exec", "group:runtime"])
def test_bash_is_exec_in_a_rule_and_as_a_name(name: str, rule: str) -> None:
    tool = make(name)
    assert Policy.from_config({"allow": [rule]}).effective([tool]) == [tool]
    assert Policy.from_config({"deny": [rule]}).effective([tool]) == []


def test_a_plugin_is_named_by_its_id() -> None:
    assert allowed("browser") == ["browser_request"]
    assert allowed("plugin:browser:browser_request") == ["browser_request"]
    assert allowed("brow*") == ["browser_request"]


@pytest.mark.parametrize(
    "rule",
    ["github__create_issue", "GitHub__*", "mcp:github:create_issue", "mcp:*", "bundle-mcp"],
)
def test_an_mcp_tool_is_named_with_its_server(rule: str) -> None:
    assert allowed(rule) == ["create_issue"]
    assert denied(rule) == ["create_issue"]


def test_a_servers_name_may_be_written_as_its_tools_have_it() -> None:
    tool = make("send_mail", "mcp", "Outlook Graph")
    assert Policy.from_config({"allow": ["outlook-graph__*"]}).effective([tool]) == [tool]
    numbered = make("send_mail", "mcp", "365")
    assert Policy.from_config({"allow": ["mcp-365__send_mail"]}).effective([numbered]) == [numbered]


@pytest.mark.parametrize("rule", ["read", "re*", "group:fs", "evil"])
def test_what_a_server_calls_its_tool_allows_nothing_but_is_enough_to_deny_it(rule: str) -> None:
    tool = make("read", "mcp", "evil")
    assert Policy.from_config({"allow": [rule]}).effective([tool]) == []
    assert Policy.from_config({"deny": [rule]}).effective([tool]) == []


@pytest.mark.parametrize(
    "name", ["openclaw:core:read", "OPENCLAW:core:read", "mcp:github:create_issue", "group:fs"]
)
def test_a_name_that_looks_like_an_id_is_not_one(name: str) -> None:
    rules: list[JsonValue] = ["openclaw:core:read", "mcp:github:*", "group:fs"]
    policy = Policy.from_config({"allow": rules})
    assert policy.effective([make(name, "client", "app"), make(name, "mcp", "x")]) == []


def test_to_allow_write_is_to_allow_apply_patch_and_to_deny_it_is_not() -> None:
    assert allowed("write") == ["write", "apply_patch"]
    assert denied("write") == ["write"]
    assert denied("group:fs") == ["read", "write", "apply_patch"]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("a*", "a", True),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("**", "x", True),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
    ],
)
def test_a_star_is_any_text_and_nothing_else_is_special(
    pattern: str, name: str, expected: bool
) -> None:
    assert matches(pattern, name) is expected


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=4), st.text("ab", max_size=4))
def test_a_pattern_matches_whatever_its_stars_are_filled_with(parts: list[str], fill: str) -> None:
    assert matches("*".join(parts), fill.join(parts))


def test_a_hostile_name_does_not_slow_a_rule_down() -> None:
    began = time.process_time()
    assert not matches("*a" * 50 + "*b", "a" * 100_000)
    assert time.process_time() - began < 1


# ---- Groups and profiles ----


@pytest.mark.covers("HK-5")
def test_a_group_stands_for_its_tools() -> None:
    assert allowed("group:fs") == ["read", "write", "apply_patch"]
    assert allowed("GROUP:Messaging") == ["message"]
    assert denied("group:runtime") == ["exec"]


def test_the_groups_of_sources_know_tools_by_where_they_come_from() -> None:
    assert allowed("group:plugins") == ["browser_request", "create_issue"]
    assert allowed("group:openclaw") == ["message", "session_status", "lookup_order"]


@pytest.mark.covers("HK-5")
@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("minimal", ["session_status"]),
        ("coding", ["read", "write", "apply_patch", "exec", "session_status", "create_issue"]),
        ("Messaging", ["message", "session_status", "create_issue"]),
        ("full", [tool.name for tool in ALL]),
    ],
)
def test_a_profile_is_a_base_allowlist(profile: str, expected: list[str]) -> None:
    assert passing(Policy.from_config({"profile": profile})) == expected


def test_also_allow_adds_to_the_profile_and_deny_still_wins() -> None:
    also: JsonValue = ["lookup_order", "exec"]
    policy = Policy.from_config({"profile": "minimal", "alsoAllow": also, "deny": ["exec"]})
    assert passing(policy) == ["session_status", "lookup_order"]


def test_also_allow_without_a_profile_takes_nothing_away() -> None:
    assert passing(Policy.from_config({"alsoAllow": ["read"]})) == [tool.name for tool in ALL]


def test_profile_and_allow_must_both_name_a_tool() -> None:
    policy = Policy.from_config({"profile": "coding", "allow": ["read", "message"]})
    assert passing(policy) == ["read"]


def test_every_profile_is_made_of_known_groups() -> None:
    for name in PROFILES:
        assert PolicyLayer("global", profile=name).profile == name
    for name in GROUPS:
        assert PolicyLayer("global", allow=(f"group:{name}",)).allow


# ---- Layers ----


@pytest.mark.covers("HK-6")
@pytest.mark.parametrize(
    "layer", ["config", "agent", "provider", "model", "channel", "sender", "sandbox"]
)
def test_a_tool_must_pass_every_layer_that_is_set(layer: str) -> None:
    scopes: dict[str, dict[str, JsonValue]] = {
        name: {"allow": ["read", "message"]}
        for name in ("config", "agent", "provider", "model", "channel", "sender", "sandbox")
    }
    assert passing(Policy.from_config(**scopes)) == ["read", "message"]
    denying = scopes | {layer: {"deny": ["message"], "allow": ["*"]}}
    assert passing(Policy.from_config(**denying)) == ["read"]
    omitting = scopes | {layer: {"allow": ["read"]}}
    assert passing(Policy.from_config(**omitting)) == ["read"]


@pytest.mark.covers("HK-6")
def test_an_inner_layer_cannot_give_back_what_an_outer_one_took() -> None:
    policy = Policy.from_config(
        {"deny": ["exec"]}, agent={"allow": ["exec", "read"]}, sender={"alsoAllow": ["exec"]}
    )
    assert passing(policy) == ["read"]


def test_layers_stand_in_their_order() -> None:
    something: dict[str, JsonValue] = {"profile": "full", "deny": ["x"]}
    policy = Policy.from_config(
        something,
        sandbox={},
        sender=something,
        channel=something,
        model=something,
        provider=something,
        agent=something,
    )
    assert [layer.name for layer in policy.layers] == list(SCOPES)


def test_an_agents_profile_replaces_the_global_one_with_all_that_was_added_to_it() -> None:
    outer: dict[str, JsonValue] = {"profile": "coding", "alsoAllow": ["lookup_order"]}
    assert passing(Policy.from_config(outer, agent={"profile": "minimal"})) == ["session_status"]


def test_an_agent_without_a_profile_adds_to_the_global_one() -> None:
    outer: dict[str, JsonValue] = {"profile": "minimal", "alsoAllow": ["read"]}
    policy = Policy.from_config(outer, agent={"alsoAllow": ["lookup_order"]})
    assert passing(policy) == ["read", "session_status", "lookup_order"]


def test_a_providers_profile_narrows_what_the_base_profile_left() -> None:
    policy = Policy.from_config(
        {"profile": "coding"}, provider={"profile": "minimal", "alsoAllow": ["read", "message"]}
    )
    assert passing(policy) == ["read", "session_status"]


@pytest.mark.parametrize("scope", ["config", "agent", "sender", "sandbox"])
def test_an_empty_allowlist_removes_everything(scope: str) -> None:
    settings: dict[str, dict[str, JsonValue]] = {scope: {"allow": []}}
    assert passing(Policy.from_config(**settings)) == []


# ---- Sandboxed agents ----


def test_a_sandbox_keeps_plugins_and_servers_out_unless_told() -> None:
    inside = passing(Policy.from_config(sandbox={}))
    assert inside == [tool.name for tool in ALL if tool not in (BROWSE, ISSUE)]


@pytest.mark.parametrize("rule", ["bundle-mcp", "github__*", "group:plugins", "mcp:github:*"])
def test_also_allow_lets_an_mcp_server_into_the_sandbox(rule: str) -> None:
    policy = Policy.from_config(sandbox={"alsoAllow": [rule]})
    assert "create_issue" in passing(policy)
    assert "read" in passing(policy)


def test_also_allow_lets_one_plugin_into_the_sandbox() -> None:
    assert "browser_request" in passing(Policy.from_config(sandbox={"alsoAllow": ["browser"]}))


def test_the_sandbox_needs_its_own_leave_even_if_the_profile_gives_it() -> None:
    assert "create_issue" in passing(Policy.from_config({"profile": "coding"}))
    assert "create_issue" not in passing(Policy.from_config({"profile": "coding"}, sandbox={}))


# ---- Reasons ----


@pytest.mark.parametrize(
    ("policy", "layer", "rule"),
    [
        (Policy.from_config({"deny": ["Group:Runtime"]}), "global", "'Group:Runtime'"),
        (Policy.from_config({"profile": "minimal"}), "profile", "'minimal'"),
        (Policy.from_config(sender={"allow": ["read"]}), "sender", "allow"),
        (Policy((PolicyLayer("mine", allow=("read",)),)), "mine", "allow"),
    ],
)
def test_a_denial_names_the_layer_and_the_rule(policy: Policy, layer: str, rule: str) -> None:
    reason = policy.why_denied(SHELL)
    assert reason is not None
    assert layer in reason
    assert rule in reason
    assert Policy().why_denied(SHELL) is None


# ---- Settings that cannot be meant ----


@pytest.mark.parametrize(
    ("settings", "path", "mentions"),
    [
        ({"allow": ["read"], "alsoAllow": ["write"]}, "tools", "alsoAllow"),
        ({"allow": ["group:files"]}, "tools", "memory"),
        ({"deny": ["group:*"]}, "tools", "runtime"),
        ({"profile": "codin"}, "tools", "messaging"),
        ({"profile": 3}, "tools.profile", "profile"),
        ({"allow": "read"}, "tools.allow", "list"),
        ({"deny": ["read", 3]}, "tools.deny", "list"),
        ({"allow": [" "]}, "tools", "empty"),
        ({"alow": ["read"]}, "tools", "allow"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(
    settings: dict[str, JsonValue], path: str, mentions: str
) -> None:
    with pytest.raises(ConfigurationError, match=mentions) as caught:
        Policy.from_config(settings)
    assert caught.value.code == "invalid_config"
    assert caught.value.path == path
    assert caught.value.expected


def test_the_error_says_which_scope_it_was() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policy.from_config({}, sandbox={"alsoAllow": ["group:mcp"]})
    assert caught.value.path == "tools.sandbox.tools"


@pytest.mark.covers("N-7")
def test_a_text_in_the_place_of_a_list_is_refused_in_a_layer_made_by_hand() -> None:
    with pytest.raises(ConfigurationError, match=r"tools\.deny is not a list"):
        PolicyLayer("global", deny="exec")  # pyrefly: ignore[bad-argument-type] - the mistake


# ---- Rules that match nothing ----


@pytest.mark.covers("N-7")
@pytest.mark.parametrize(
    ("rule", "nearest"),
    [
        ("exce", "exec"),
        (" Lookup_Ordr ", "lookup_order"),
        ("create_isue", "mcp:github:create_issue"),
        ("mcp:github:create_isue", "mcp:github:create_issue"),
        ("browser_*est_", "browser_request"),
        ("zzz", ""),
    ],
)
def test_a_rule_that_matches_no_tool_is_found_with_the_nearest_name(
    rule: str, nearest: str
) -> None:
    assert find_unmatched(["read", rule], ALL, "tools.deny") == [
        UnmatchedRule("tools.deny", rule, nearest)
    ]


@pytest.mark.covers("N-7")
def test_to_allow_an_mcp_tool_by_its_bare_name_matches_nothing_and_the_id_is_advised() -> None:
    (found,) = find_unmatched(["create_issue"], ALL, "tools.allow", allowing=True)
    assert str(found) == (
        "tools.allow: 'create_issue' matches no tool of this run; "
        "did you mean 'mcp:github:create_issue'?"
    )


def test_groups_and_known_tools_are_no_typing_mistakes_in_a_run_without_them() -> None:
    rules = ["*", "group:web", "canvas", "bash", "bundle-mcp", "client:*", "plugin:*"]
    assert find_unmatched(rules, [OWN], "tools.deny") == []
    assert find_unmatched(["exce"], [], "tools.deny") == []


@pytest.mark.covers("N-7")
def test_every_layer_tells_which_of_its_rules_match_nothing() -> None:
    policy = Policy.from_config(
        {"profile": "coding", "alsoAllow": ["lookup_oder"], "deny": ["exce"]},
        agent={"allow": ["raed", "exec"]},
    )
    assert [(found.path, found.rule) for found in policy.unmatched(ALL)] == [
        ("tools.alsoAllow", "lookup_oder"),
        ("tools.deny", "exce"),
        ("agents.list[].tools.allow", "raed"),
    ]
