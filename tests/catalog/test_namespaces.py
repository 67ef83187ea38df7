"""Namespaces, host side: registering, visibility, scopes, and calls that may be forged."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import examples

from clawmode.catalog.namespace_runtime import (
    MAX_PROMPT_CHARS,
    MAX_SCOPE_BYTES,
    MAX_SCOPE_DEPTH,
    NamespaceRuntime,
)
from clawmode.catalog.namespaces import (
    BUILT_IN_GLOBALS,
    RESERVED_WORDS,
    NamespaceCallRefused,
    NamespaceContext,
    NamespaceError,
    NamespaceRegistration,
    NamespaceRegistry,
    NamespaceScopeError,
    clear_namespaces_for_plugin,
    clear_namespaces_for_test,
    default_registry,
    namespace_tool,
    register_namespace_for_plugin,
    unregister_namespace,
)
from clawmode.context import RunContext
from clawmode.exceptions import SandboxError
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Completion, Start, Suspension
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonObject, JsonValue

TOOL_NAMES = ("list_issues", "update_issue")
quickly = examples(150, derandomize=True)
CONTEXT = NamespaceContext(RunContext(run_id="r1"))


def tool(name: str, owner: str = "github", source: ToolSource = "plugin") -> Tool:
    return Tool(
        name, "", {"type": "object"}, lambda params, context: None, source=source, owner=owner
    )


TOOLS = [tool(name) for name in TOOL_NAMES]


def registration(scope: object = None, **fields: Any) -> NamespaceRegistration:
    usual: dict[str, Any] = {
        "id": "github-issues",
        "global_name": "Issues",
        "description": "Issues of the repository.",
        "required_tool_names": TOOL_NAMES,
        "create_scope": lambda context: {} if scope is None else scope,
    }
    return NamespaceRegistration(**(usual | fields))


def registry_of(*registrations: NamespaceRegistration) -> NamespaceRegistry:
    registry = NamespaceRegistry()
    for item in registrations:
        registry.register_for_plugin("github", item)
    return registry


def runtime(scope: object = None, **fields: Any) -> NamespaceRuntime:
    visible = registry_of(registration(scope, **fields)).visible(TOOLS)
    return NamespaceRuntime(visible, TOOLS, CONTEXT)


def node_of(scope: object) -> JsonValue:
    return runtime(scope).descriptors()[0]["scope"]


def scope_error(scope: object) -> str:
    with pytest.raises(NamespaceScopeError) as caught:
        runtime(scope).descriptors()
    assert caught.value.code == "internal_error"
    return str(caught.value)


def ids(registry: NamespaceRegistry) -> list[str]:
    return [item.id for item in registry.visible(TOOLS)]


# ---- Registering ----


@pytest.fixture
def clean() -> Iterator[None]:
    clear_namespaces_for_test()
    yield
    clear_namespaces_for_test()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": " "},
        {"id": 7},
        {"id": "\ud800"},
        {"description": None},
        {"prompt": b"bytes"},
        {"required_tool_names": []},
        {"required_tool_names": "list_issues"},
        {"required_tool_names": ["list_issues", 1]},
        {"required_tool_names": [""]},
        {"required_tool_names": None},
        {"create_scope": {}},
    ],
)
def test_a_registration_that_cannot_be_meant_raises_where_it_is_made(fields: Any) -> None:
    with pytest.raises(NamespaceError):
        registration(**fields)


def test_an_async_create_scope_raises_where_it_is_made() -> None:
    async def create(context: NamespaceContext) -> dict[str, Any]:
        return {}

    with pytest.raises(NamespaceError, match="plain function"):
        registration(create_scope=create)


def test_an_async_input_mapper_raises_where_it_is_made() -> None:
    async def mapper(args: list[JsonValue]) -> JsonValue:
        return {}

    with pytest.raises(NamespaceError, match="async"):
        namespace_tool("list_issues", mapper)  # pyrefly: ignore[bad-argument-type] - the point


@pytest.mark.covers("CM-ns-identifier")
@pytest.mark.parametrize(
    "name", ["", "1st", "my-issues", "a.b", "a b", "a\0", "Issues\n", "😀", 5, None]
)
def test_a_global_name_that_is_no_identifier_is_refused(name: object) -> None:
    with pytest.raises(NamespaceError, match="JavaScript identifier"):
        registration(global_name=name)


@pytest.mark.covers("CM-ns-identifier")
@pytest.mark.parametrize("name", ["class", "await", "let", "null", "enum", "yield", "require"])
def test_a_reserved_word_is_refused(name: str) -> None:
    with pytest.raises(NamespaceError, match="reserved word"):
        registration(global_name=name)


@pytest.mark.parametrize("name", ["Issues", "$", "_x", "été", "Issues2", "of", "async"])
def test_every_other_identifier_is_taken(name: str) -> None:
    assert registration(global_name=name).global_name == name


@pytest.mark.covers("CM-ns-collision")
@pytest.mark.parametrize(
    "name",
    [
        *["tools", "namespaces", "text", "json", "yield_control", "ALL_TOOLS", "MCP", "API"],
        *["console", "setTimeout", "Object", "eval", "undefined", "Atomics", "toString"],
        *["__openclaw", "__openclawBridge", "__openclaw_x", "__proto__"],
    ],
)
def test_a_built_in_global_is_refused(name: str) -> None:
    with pytest.raises(NamespaceError, match="built-in global"):
        registration(global_name=name)


@pytest.mark.parametrize(
    ("fields", "taken"),
    [({"global_name": "Other"}, "id 'github-issues'"), ({"id": "other"}, "global_name 'Issues'")],
)
def test_an_id_or_a_global_name_is_given_once(fields: Any, taken: str) -> None:
    registry = registry_of(registration())
    with pytest.raises(NamespaceError, match=f"{taken} is taken by plugin 'github'"):
        registry.register_for_plugin("gitlab", registration(**fields))
    assert ids(registry) == ["github-issues"]


def test_a_namespace_without_a_plugin_is_refused() -> None:
    with pytest.raises(NamespaceError, match="plugin"):
        NamespaceRegistry().register_for_plugin("", registration())


def test_what_was_required_cannot_be_changed_afterwards() -> None:
    names = ["list_issues"]
    made = registration(required_tool_names=names)
    names.append("delete_everything")
    assert made.required_tool_names == ("list_issues",)


def test_a_plugin_cannot_register_in_the_name_of_another() -> None:
    stolen = registry_of(registration()).visible(TOOLS)[0]
    registry = NamespaceRegistry()
    registry.register_for_plugin("thief", stolen)
    assert ids(registry) == []


@pytest.mark.covers("CM-N10")
@pytest.mark.usefixtures("clean")
def test_rolling_a_plugin_back_removes_its_namespaces_only() -> None:
    for plugin in ("github", "gitlab"):
        for number in (1, 2):
            made = registration(id=f"{plugin}{number}", global_name=f"{plugin}{number}")
            register_namespace_for_plugin(plugin, made)
    clear_namespaces_for_plugin("github")
    clear_namespaces_for_plugin("github")
    tools = [tool(name, owner) for owner in ("github", "gitlab") for name in TOOL_NAMES]
    assert [item.id for item in default_registry.visible(tools)] == ["gitlab1", "gitlab2"]
    register_namespace_for_plugin("github", registration(id="github1", global_name="github1"))


@pytest.mark.covers("CM-ns-unregister")
@pytest.mark.usefixtures("clean")
def test_unregistering_one_namespace_leaves_the_others() -> None:
    register_namespace_for_plugin("github", registration())
    register_namespace_for_plugin("github", registration(id="other", global_name="Other"))
    unregister_namespace("github-issues")
    unregister_namespace("never-there")
    assert ids(default_registry) == ["other"]


@pytest.mark.covers("CM-ns-clear-tests")
def test_a_test_can_clear_all_registrations() -> None:
    register_namespace_for_plugin("github", registration())
    register_namespace_for_plugin("gitlab", registration(id="other", global_name="Other"))
    clear_namespaces_for_test()
    assert ids(default_registry) == []
    register_namespace_for_plugin("github", registration())
    clear_namespaces_for_test()


# ---- Visibility ----


@pytest.mark.covers("CM-ns-required")
def test_a_namespace_needs_all_its_tools() -> None:
    registry = registry_of(registration())
    assert ids(registry) == ["github-issues"]
    assert registry.visible(TOOLS[:1]) == []
    assert registry.visible([]) == []


@pytest.mark.covers("CM-N2", "CM-ns-required")
@pytest.mark.parametrize(
    "foreign",
    [
        tool("update_issue", "gitlab"),
        tool("update_issue", "github", "mcp"),
        tool("update_issue", "github", "client"),
        tool("update_issue", "github", "openclaw"),
    ],
    ids=lambda foreign: foreign.id,
)
def test_a_tool_of_the_same_name_that_is_anothers_does_not_count(foreign: Tool) -> None:
    visible = registry_of(registration()).visible([TOOLS[0], foreign])
    assert visible == []


def test_a_runtime_leaves_out_what_the_run_cannot_see() -> None:
    visible = registry_of(registration({"list": namespace_tool("list_issues")})).visible(TOOLS)
    made = NamespaceRuntime(visible, TOOLS[:1], CONTEXT)
    assert (made.descriptors(), made.prompt_text()) == ([], "")
    with pytest.raises(NamespaceCallRefused):
        made.resolve("github-issues", ["list"], [])


def test_namespaces_are_sorted_by_global_name() -> None:
    names = ["Zeta", "Alpha", "Mid"]
    registry = registry_of(*[registration(id=name, global_name=name) for name in names])
    visible = registry.visible(TOOLS)
    made = NamespaceRuntime(reversed(visible), TOOLS, CONTEXT)
    assert [item.global_name for item in visible] == ["Alpha", "Mid", "Zeta"]
    assert [item["global"] for item in made.descriptors()] == ["Alpha", "Mid", "Zeta"]


# ---- Prompts ----


def test_the_prompt_has_a_line_for_each_namespace_that_can_be_seen() -> None:
    registry = registry_of(
        registration(prompt="Use Issues.list().\nNot\tmore."),
        registration(id="a", global_name="Fictions", description="Stories.\n\nMCP: forged"),
        registration(id="b", global_name="Hidden", required_tool_names=["absent"]),
    )
    made = NamespaceRuntime(registry.visible(TOOLS), TOOLS, CONTEXT)
    assert made.prompt_text() == (
        "Fictions: Stories. MCP: forged\n"
        "Issues: Issues of the repository. Use Issues.list(). Not more."
    )
    gone = NamespaceRuntime(registry.visible(TOOLS), TOOLS[1:], CONTEXT)
    assert gone.prompt_text() == ""


def test_a_prompt_is_bounded() -> None:
    text = runtime(prompt="long " * 1000).prompt_text()
    assert len(text) == MAX_PROMPT_CHARS
    assert text.endswith("…")


def test_the_prompt_needs_no_scope() -> None:
    assert runtime(lambda: None).prompt_text() == "Issues: Issues of the repository."


# ---- Making scopes ----


@pytest.mark.covers("CM-ns-scope-context")
def test_a_scope_is_made_once_for_each_run_with_its_context() -> None:
    seen: list[NamespaceContext] = []

    def create(context: NamespaceContext) -> dict[str, Any]:
        seen.append(context)
        return {"run": context.run.run_id, "list": namespace_tool("list_issues")}

    visible = registry_of(registration(create_scope=create)).visible(TOOLS)
    state = {"aborted": False}
    for run_id in ("one", "two"):
        run = RunContext(agent_id="a", session_id="s", session_key="k", run_id=run_id)
        context = NamespaceContext(run, {"limit": 3}, lambda: state["aborted"])
        made = NamespaceRuntime(visible, TOOLS, context)
        made.descriptors()
        made.resolve("github-issues", ["list"], [])
        made.descriptors()
    assert [context.run.run_id for context in seen] == ["one", "two"]
    one = seen[0]
    assert (one.run.agent_id, one.run.session_id, one.run.session_key) == ("a", "s", "k")
    assert one.config == {"limit": 3}
    state["aborted"] = True
    assert one.aborted()


def test_a_scope_that_cannot_be_made_says_why() -> None:
    def create(context: NamespaceContext) -> dict[str, Any]:
        raise ValueError("no token \ud800")

    with pytest.raises(NamespaceScopeError, match=r"Issues: create_scope failed: ValueError: no"):
        runtime(create_scope=create).descriptors()
    assert issubclass(NamespaceScopeError, SandboxError)


@pytest.mark.parametrize("scope", [[], "text", 1, namespace_tool("list_issues")])
def test_a_scope_is_a_dict(scope: object) -> None:
    assert "must return a dict" in scope_error(scope)


def test_a_call_after_a_restart_makes_the_scope_by_itself() -> None:
    made = runtime({"list": namespace_tool("list_issues")})
    assert made.resolve("github-issues", ["list"], [])[0] is TOOLS[0]


# ---- Serializing ----


def test_a_scope_becomes_nodes() -> None:
    scope = {
        "repository": {"name": "x", "stars": 3},
        "list": namespace_tool("list_issues"),
        "deep": [1, {"update": namespace_tool("update_issue")}, (True, None)],
    }
    assert runtime(scope).descriptors() == [
        {
            "id": "github-issues",
            "global": "Issues",
            "scope": {
                "t": "o",
                "v": {
                    "repository": {"t": "v", "v": {"name": "x", "stars": 3}},
                    "list": {"t": "f"},
                    "deep": {
                        "t": "a",
                        "v": [
                            {"t": "v", "v": 1},
                            {"t": "o", "v": {"update": {"t": "f"}}},
                            {"t": "v", "v": [True, None]},
                        ],
                    },
                },
            },
        }
    ]


class Client:
    """Something that stays on the host."""


class Color(Enum):
    RED = 1


class Invocable:
    def __call__(self) -> None: ...


@pytest.mark.covers("CM-N3")
@pytest.mark.parametrize(
    "function",
    [lambda: None, print, "".join, Client, Invocable()],
    ids=lambda value: str(type(value)),
)
def test_a_raw_function_is_refused_with_its_path(function: Callable[..., object]) -> None:
    assert scope_error({"a": [{"list": function}]}).startswith("Issues.a.0.list is a raw function")


@pytest.mark.covers("NS-2")
def test_a_value_may_be_shared() -> None:
    shared = {"x": [1]}
    assert node_of({"a": shared, "b": [shared, shared]}) == {
        "t": "v",
        "v": {"a": {"x": [1]}, "b": [{"x": [1]}, {"x": [1]}]},
    }


@pytest.mark.covers("NS-2")
def test_a_cycle_is_refused_with_its_path() -> None:
    scope: dict[str, Any] = {"a": [{}]}
    scope["a"][0]["back"] = scope
    assert scope_error(scope).startswith("Issues.a.0.back is a cycle")
    loop: list[Any] = []
    loop.append(loop)
    assert scope_error({"loop": loop}).startswith("Issues.loop.0 is a cycle")


@pytest.mark.covers("CM-ns-unsafe-keys")
@pytest.mark.parametrize(
    "key", ["__proto__", "constructor", "prototype", "", "a.b", ".", "a\0b", "\ud800"]
)
def test_an_unsafe_key_is_refused_with_its_path(key: str) -> None:
    assert scope_error({"in": {key: 1}}) == f"Issues.in has the unsafe key {key!r}"


@pytest.mark.parametrize("key", [1, None, True, ("a",)])
def test_a_key_that_is_no_string_is_refused(key: object) -> None:
    assert scope_error({"in": {key: 1}}).startswith(f"Issues.in has the key {key!r}")


@pytest.mark.covers("CM-N5")
@pytest.mark.parametrize("name", ["delete_issue", "plugin:github:list_issues", "", None])
def test_a_marker_may_name_only_a_declared_tool(name: Any) -> None:
    undeclared = tool("delete_issue")
    scope = {"remove": namespace_tool(name)}
    visible = registry_of(registration(scope)).visible(TOOLS)
    made = NamespaceRuntime(visible, [*TOOLS, undeclared], CONTEXT)
    with pytest.raises(NamespaceScopeError, match=r"Issues\.remove calls an undeclared tool"):
        made.descriptors()
    with pytest.raises(NamespaceScopeError):
        made.resolve("github-issues", ["remove"], [])


def nested(levels: int) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for _ in range(levels - 1):
        scope = {"a": scope}
    return scope


def test_depth_is_bounded() -> None:
    assert node_of(nested(MAX_SCOPE_DEPTH))
    assert "more than 32 levels" in scope_error(nested(MAX_SCOPE_DEPTH + 1))
    assert "more than 32 levels" in scope_error(nested(100_000))


@pytest.mark.parametrize(
    "scope",
    [
        {"text": "x" * MAX_SCOPE_BYTES},
        {"wide": "é" * (MAX_SCOPE_BYTES * 2 // 3)},
        {"many": [0] * (MAX_SCOPE_BYTES // 2)},
        {"k" * MAX_SCOPE_BYTES: 1},
        {"nodes": [namespace_tool("list_issues")] * (MAX_SCOPE_BYTES // 8)},
    ],
    ids=["text", "wide", "many", "key", "nodes"],
)
def test_size_is_bounded(scope: object) -> None:
    assert f"over {MAX_SCOPE_BYTES} bytes" in scope_error(scope)


def test_a_scope_up_to_the_bound_is_fine() -> None:
    assert node_of({"text": "x" * (MAX_SCOPE_BYTES - 100)})


def test_shared_values_that_unfold_are_stopped_early() -> None:
    scope: dict[str, Any] = {"x": 1}
    for _ in range(MAX_SCOPE_DEPTH - 1):
        scope = {"a": scope, "b": scope}
    assert f"over {MAX_SCOPE_BYTES} bytes" in scope_error(scope)
    assert "bytes" in scope_error({"a": ["x" * 100_000] * 1_000_000})


@pytest.mark.covers("CM-ns-fallback")
@pytest.mark.parametrize(
    ("value", "fallback"),
    [
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (b"secret", "[bytes: 6]"),
        (bytearray(3), "[bytearray: 3]"),
        (float("nan"), None),
        (float("-inf"), None),
        (10**400, None),
        (Client(), "[Client]"),
        (Color.RED, "[Color]"),
        (Decimal(1), "[Decimal]"),
        ({1, 2}, "[set]"),
        ("half \ud800", "half ?"),
    ],
)
def test_what_json_cannot_carry_has_a_safe_stand_in(value: object, fallback: JsonValue) -> None:
    assert node_of({"a": [value]}) == {"t": "v", "v": {"a": [fallback]}}


LETTERS = 'aé😀_0 \n"\\'


def data(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(LETTERS, min_size=1, max_size=5), values, max_size=4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(LETTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=4) | data(inner),
    max_leaves=8,
)


@quickly
@given(data(JSON))
def test_json_data_arrives_as_it_was(scope: JsonObject) -> None:
    assert node_of(scope) == {"t": "v", "v": scope}


KEYS = st.text("a.\0\ud800_", max_size=3) | st.sampled_from(["__proto__", "prototype", "ok"])
ANYTHING = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(max_size=5) | st.dates() | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=8,
)


@quickly
@given(st.dictionaries(KEYS, ANYTHING, max_size=2))
@example({"a": "\ud800"})
def test_every_scope_is_refused_or_becomes_json(scope: dict[str, Any]) -> None:
    try:
        node = node_of(scope)
    except NamespaceScopeError:
        return
    assert json.loads(json.dumps(node, allow_nan=False, ensure_ascii=False).encode()) == node


# ---- Calls ----


def resolve(made: NamespaceRuntime, path: JsonValue, args: JsonValue) -> JsonObject:
    return made.resolve("github-issues", path, args)[1]


@pytest.mark.covers("CM-ns-input-mapper")
def test_without_a_mapper_the_first_argument_is_the_input() -> None:
    made = runtime({"list": namespace_tool("list_issues")})
    found, params = made.resolve("github-issues", ["list"], [{"state": "open"}, "ignored"])
    assert found is TOOLS[0]
    assert params == {"state": "open"}
    assert resolve(made, ["list"], []) == {}
    assert resolve(made, ["list"], [None]) == {}


@pytest.mark.covers("CM-ns-input-mapper")
def test_a_mapper_turns_arguments_into_the_input() -> None:
    marker = namespace_tool("update_issue", lambda args: {"number": args[0], "patch": args[1]})
    made = runtime({"update": marker})
    found, params = made.resolve("github-issues", ["update"], [7, {"state": "closed"}])
    assert found is TOOLS[1]
    assert params == {"number": 7, "patch": {"state": "closed"}}


def test_a_tool_that_changes_its_input_does_not_change_the_mappers_state() -> None:
    defaults: dict[str, JsonValue] = {"labels": []}
    made = runtime({"list": namespace_tool("list_issues", lambda args: defaults)})
    resolve(made, ["list"], [])["labels"] = "changed"
    assert resolve(made, ["list"], []) == {"labels": []}


@pytest.mark.parametrize("argument", ["text", 1, True, [], [[]]])
def test_an_argument_that_is_no_object_is_refused(argument: JsonValue) -> None:
    made = runtime({"list": namespace_tool("list_issues")})
    with pytest.raises(NamespaceCallRefused, match=r"Issues\.list needs an input object"):
        resolve(made, ["list"], [argument])


def raising(args: list[JsonValue]) -> JsonValue:
    raise ValueError("number must be positive \ud800")


@pytest.mark.parametrize(
    ("mapper", "message"),
    [
        (raising, r"Issues\.list cannot use its arguments: ValueError: number must be positive \?"),
        (lambda args: args[3], "IndexError"),
        (lambda args: None, "needs an input object"),
        (lambda args: [1], "needs an input object"),
        (lambda args: {"a": float("nan")}, "cannot use"),
        (lambda args: {"a": object()}, "cannot use"),
    ],
)
def test_a_mapper_that_makes_no_object_refuses_the_call(mapper: Any, message: str) -> None:
    made = runtime({"list": namespace_tool("list_issues", mapper)})
    with pytest.raises(NamespaceCallRefused, match=message):
        resolve(made, ["list"], [1])


def test_array_indexes_are_decimal_strings() -> None:
    made = runtime({"all": [1, namespace_tool("list_issues")]})
    assert resolve(made, ["all", "1"], []) == {}
    for forged in ("01", "1.0", "-1", "0", "٣", 1):
        with pytest.raises(NamespaceCallRefused):
            resolve(made, ["all", forged], [])


SCOPE = {
    "list": namespace_tool("list_issues"),
    "data": {"name": "x"},
    "deep": {"er": [namespace_tool("update_issue")], "count": 1},
}
CALLABLE = [["list"], ["deep", "er", "0"]]


@pytest.mark.covers("CM-N4")
@pytest.mark.parametrize(
    "path",
    [
        *[[], ["nothing"], ["data"], ["data", "name"], ["deep"], ["deep", "er"], ["list", "call"]],
        *[["deep.er.0"], ["deep.er", "0"], ["deep\0er\0000"], ["list\0"], ["", "list"], [".list"]],
        *[["__proto__"], ["constructor"], ["list", "constructor"], ["__class__"], ["\ud800"]],
        *["list", None, 1, {"0": "list"}, [["list"]], [None], [True], [{"a": 1}], ["list", 0]],
    ],
    ids=repr,
)
def test_a_forged_path_is_refused(path: JsonValue) -> None:
    with pytest.raises(NamespaceCallRefused) as caught:
        runtime(SCOPE).resolve("github-issues", path, [])
    assert str(caught.value).encode()


@pytest.mark.covers("CM-N4")
@pytest.mark.parametrize(
    "namespace_id", ["", "Issues", "other", "github-issues\0", None, 1, True, [], {}, "\ud800"]
)
def test_a_forged_namespace_id_is_refused(namespace_id: JsonValue) -> None:
    with pytest.raises(NamespaceCallRefused, match="no namespace") as caught:
        runtime(SCOPE).resolve(namespace_id, ["list"], [])
    assert str(caught.value).encode()


@pytest.mark.parametrize("args", [None, "x", 1, {}, {"0": {}}])
def test_arguments_that_are_no_list_are_refused(args: JsonValue) -> None:
    with pytest.raises(NamespaceCallRefused, match="not a list"):
        runtime(SCOPE).resolve("github-issues", ["list"], args)


def test_the_refusal_of_a_huge_path_is_short() -> None:
    with pytest.raises(NamespaceCallRefused) as caught:
        runtime(SCOPE).resolve("github-issues", ["x" * 1_000_000] * 2, [])
    assert len(str(caught.value)) < 200


SEGMENTS = st.sampled_from(["list", "data", "deep", "er", "0", "name", ".", "\0", "deep.er"])
FORGED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | SEGMENTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SEGMENTS, inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.covers("CM-N4")
@quickly
@given(
    st.just("github-issues") | FORGED,
    st.sampled_from(CALLABLE) | st.lists(SEGMENTS, max_size=4) | FORGED,
    st.lists(FORGED, max_size=2) | FORGED,
)
def test_a_forged_message_reaches_a_declared_function_or_is_refused(
    namespace_id: JsonValue, path: JsonValue, args: JsonValue
) -> None:
    try:
        found, params = runtime(SCOPE).resolve(namespace_id, path, args)
    except NamespaceCallRefused:
        return
    assert namespace_id == "github-issues"
    assert (path, found) in [(CALLABLE[0], TOOLS[0]), (CALLABLE[1], TOOLS[1])]
    assert isinstance(params, dict)


# ---- With the guest's side ----


async def run(pool: Pool, source: str, made: NamespaceRuntime) -> Any:
    setup = json.dumps({"tools": [], "names": {}, "namespaces": made.descriptors()}).encode()
    start = Start(source, setup=hashlib.sha256(setup).digest())
    cell = pool.cell()
    outcome = await pool.step(cell, start, time.monotonic() + 10, setup)
    pool.drop(cell)  # else it would stay in a worker of all other tests
    if isinstance(outcome, Suspension):
        return [json.loads(request.args) for request in outcome.requests]
    assert isinstance(outcome, Completion), outcome
    return json.loads(outcome.value)


@pytest.mark.anyio
@pytest.mark.covers("CM-N6", "CM-ns-data", "CM-ns-globals")
async def test_the_guest_finds_scopes_intact(pool: Pool) -> None:
    shared = {"labels": ["bug", None], "n": 1.5}
    scope = {
        "one": shared,
        "two": [shared, {"list": namespace_tool("list_issues")}],
        "toString": "mine",
    }
    source = """return {
  same: Issues === namespaces.Issues, one: Issues.one, two: Issues.two, mine: Issues.toString,
  kind: typeof Issues.two[1].list }"""
    assert await run(pool, source, runtime(scope)) == {
        "same": True,
        "one": shared,
        "two": [shared, {"list": "[Function: anonymous]"}],
        "mine": "mine",
        "kind": "function",
    }


@pytest.mark.anyio
async def test_what_the_guest_calls_is_what_the_host_resolves(pool: Pool) -> None:
    made = runtime(SCOPE)
    source = """await Promise.all([
  Issues.list({ state: "open" }), Issues.list(), Issues.list(undefined),
  namespaces.Issues.deep.er[0]({ number: 7 }) ])"""
    requests = await run(pool, source, made)
    assert [made.resolve(*request) for request in requests] == [
        (TOOLS[0], {"state": "open"}),
        (TOOLS[0], {}),
        (TOOLS[0], {}),
        (TOOLS[1], {"number": 7}),
    ]


@pytest.mark.anyio
@pytest.mark.covers("CM-ns-collision")
async def test_every_global_of_the_guest_is_on_the_list(pool: Pool) -> None:
    source = """const names = [];
for (let at = globalThis; at !== null; at = Object.getPrototypeOf(at)) {
  names.push(...Object.getOwnPropertyNames(at));
}
return names"""
    found = set(await run(pool, source, NamespaceRuntime([], [], CONTEXT)))
    assert found - BUILT_IN_GLOBALS == set()


@pytest.mark.anyio
@pytest.mark.covers("CM-ns-identifier")
async def test_every_reserved_word_is_refused_because_the_guest_cannot_use_it(pool: Pool) -> None:
    source = """return names.filter((name) => {
  try { new Function('"use strict"; var ' + name); return true } catch { return false }
})"""
    words = json.dumps(sorted(RESERVED_WORDS - {"await", "require"}))
    empty = NamespaceRuntime([], [], CONTEXT)
    assert await run(pool, f"const names = {words};\n{source}", empty) == []
