"""Who may do and see what: a row for every method and every event, and what strangers send."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.support.fuzzing import examples
from tests.support.gateway_inside import Inside, inside

from clawmode.gateway.clients import Client, EncodedEvent
from clawmode.gateway.dispatch import Dispatcher
from clawmode.gateway.method_table import METHODS
from clawmode.gateway.methods import MethodCall
from clawmode.rpc.protocol import IDEMPOTENCY, ClientInfo, Hello
from clawmode.rpc.scopes import EVENTS, SCOPES, Scope, expand, may_see
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

READ: Scope = "operator.read"
WRITE: Scope = "operator.write"
APPROVALS: Scope = "operator.approvals"
ADMIN: Scope = "operator.admin"

# Whether it does something for which a key is needed stands beside the scope.
ROWS: dict[str, tuple[Scope | None, bool]] = {
    "health": (READ, False),
    "dashboard.link": (READ, False),
    "status": (READ, False),
    "agent": (WRITE, True),
    "agent.wait": (READ, False),
    "agents.list": (READ, False),
    "models.list": (READ, False),
    "events.since": (None, False),
    "runs.tree": (READ, False),
    "runs.follow": (READ, False),
    "system.figures": (READ, False),
    "sessions.list": (READ, False),
    "sessions.get": (READ, False),
    "sessions.transcript": (READ, False),
    "sessions.entry": (READ, False),
    "sessions.nested": (READ, False),
    "sessions.create": (WRITE, True),
    "sessions.patch": (ADMIN, True),
    "sessions.reset": (WRITE, True),
    "sessions.delete": (ADMIN, True),
    "sessions.compact": (WRITE, True),
    "sessions.abort": (WRITE, False),
    "sessions.subscribe": (READ, False),
    "sessions.unsubscribe": (READ, False),
    "chat.send": (WRITE, True),
    "chat.history": (READ, False),
    "chat.abort": (WRITE, False),
    "chat.inject": (ADMIN, True),
    "tools.catalog": (READ, False),
    "tools.effective": (READ, False),
    "tools.invoke": (WRITE, True),
    "tools.surface": (READ, False),
    "tools.declaration": (READ, False),
    "tools.search": (READ, False),
    "tools.result": (WRITE, False),
    "exec.approval.request": (WRITE, True),
    "exec.approval.get": (APPROVALS, False),
    "exec.approval.list": (APPROVALS, False),
    "exec.approval.resolve": (APPROVALS, False),
    "exec.approval.waitDecision": (WRITE, False),
    "plugin.approval.request": (WRITE, True),
    "plugin.approval.get": (APPROVALS, False),
    "plugin.approval.list": (APPROVALS, False),
    "plugin.approval.resolve": (APPROVALS, False),
    "plugin.approval.waitDecision": (WRITE, False),
    "approval.group.get": (APPROVALS, False),
    "approval.group.list": (APPROVALS, False),
    "approval.group.resolve": (APPROVALS, False),
    "input.list": (APPROVALS, False),
    "input.answer": (APPROVALS, False),
    "exec.approvals.get": (ADMIN, False),
    "exec.approvals.set": (ADMIN, True),
    "codemode.runs": (READ, False),
    "codemode.abort": (WRITE, False),
    "codemode.run": (ADMIN, True),
    "codemode.wait": (ADMIN, False),
    "commands.list": (READ, False),
    "skills.list": (READ, False),
    "logs.tail": (ADMIN, False),
    "trajectory.export": (ADMIN, True),
    "trajectory.read": (ADMIN, False),
    "cron.list": (READ, False),
    "cron.status": (READ, False),
    "cron.add": (ADMIN, True),
    "cron.remove": (ADMIN, True),
    "cron.run": (ADMIN, True),
    "config.get": (ADMIN, False),
    "config.schema": (ADMIN, False),
    "config.set": (ADMIN, True),
    "config.reload": (ADMIN, False),
    "mcp.servers": (READ, False),
    "plugins.list": (READ, False),
    "doctor.run": (ADMIN, False),
    "tokens.list": (ADMIN, False),
    "tokens.create": (ADMIN, False),
    "tokens.revoke": (ADMIN, True),
}
EVENT_ROWS: dict[str, Scope | None] = {
    "connect.challenge": None,
    "tick": None,
    "shutdown": None,
    "health": READ,
    "agent": READ,
    "chat": READ,
    "session.message": READ,
    "session.tool": READ,
    "sessions.changed": READ,
    "runs.changed": READ,
    "diagnostics": READ,
    "cron": READ,
    "tool.call": WRITE,
    "exec.approval.requested": APPROVALS,
    "exec.approval.resolved": APPROVALS,
    "plugin.approval.requested": APPROVALS,
    "plugin.approval.resolved": APPROVALS,
    "approval.group.requested": APPROVALS,
    "approval.group.resolved": APPROVALS,
    "input.requested": APPROVALS,
    "input.resolved": APPROVALS,
}
HELD: list[tuple[Scope, ...]] = [(), *((scope,) for scope in SCOPES), (READ, APPROVALS)]
"""What clients may have."""


def test_every_method_has_a_row() -> None:
    assert {name: (it.scope, it.effect) for name, it in METHODS.items()} == ROWS


def test_every_event_has_a_row() -> None:
    assert EVENTS == EVENT_ROWS


# ---- Methods ----


def example(schema: Mapping[str, Any]) -> Any:
    """The least that fits a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {
                name: example(schema["properties"][name]) for name in schema.get("required", ())
            }
        case "array":
            return list[Any]()
        case "integer":
            return schema["minimum"]
        case "boolean":
            return False
        case "string":
            return "x" * schema.get("minLength", 1)
        case _:
            return None


@pytest.mark.parametrize("held", HELD, ids="+".join)
async def test_a_client_without_the_scope_is_refused_and_nothing_happens(
    tmp_path: Path, held: tuple[Scope, ...]
) -> None:
    reached: list[str] = []

    async def run(call: MethodCall) -> JsonObject:
        reached.append("reached")
        return {}

    async with inside(tmp_path) as it:
        spied = {name: replace(method, run=run) for name, method in METHODS.items()}
        it.dispatcher = Dispatcher(it.gateway, spied)
        client = it.client(*held)
        allowed = it.dispatcher.allowed(client)
        for name, (scope, _) in ROWS.items():
            may = scope is None or scope in expand(held)
            assert (name in allowed) is may
            for params in (example(METHODS[name].schema), {"nonsense": 1}):
                reached.clear()
                frame = await it.answer(client, name, params)
                if may:
                    assert (reached, frame["ok"]) in ((["reached"], True), ([], False))
                    continue
                assert reached == []
                assert frame["error"]["code"] == "FORBIDDEN"
                assert frame["error"]["details"] == {"scope": scope}
        assert await _noted(it) == sum(
            effect and scope in expand(held) for scope, effect in ROWS.values()
        )
        assert client._frames == type(client._frames)()


async def _noted(it: Inside) -> int:
    """How many requests the ledger knows."""

    def count() -> int:
        with it.gateway.ledger._transaction("deferred") as database:
            return int(database.execute("select count(*) from requests").fetchone()[0])

    return await it.gateway.ledger._run(count)


async def test_an_unknown_method_is_an_error_for_every_client(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        for held in HELD:
            assert await it.code("nothing.such", it.client(*held)) == "NOT_FOUND"


# ---- Events ----


@pytest.mark.parametrize("held", HELD, ids="+".join)
def test_a_client_without_the_scope_gets_no_event(held: tuple[Scope, ...]) -> None:
    for name, scope in EVENT_ROWS.items():
        client = Client(
            Hello(min_protocol=1, max_protocol=9, client=ClientInfo(id="x")),
            "x",
            expand(held),
            token="",
            following={"*"},
        )
        client.notify(EncodedEvent.of(name, {}, "agent:main:main", "run"))
        told = [json.loads(frame)["event"] for frame in client._frames]
        assert told == ([name] if scope is None or scope in expand(held) else [])


@pytest.mark.parametrize("name", ["", "agents", "exec.approval", "exec.approval.other", "AGENT"])
def test_an_event_without_a_row_is_sent_to_nobody(name: str) -> None:
    assert not may_see(name, expand(SCOPES))


# ---- Strangers ----

TEXTS = st.text(st.characters(exclude_categories=()), max_size=300)  # halves of characters, too
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
LIKELY = st.sampled_from(
    ["main", "agent:main:main", "agent:x:y", "../../etc", "a\x00b", "exec", "*", "{}", "$schema"]
)


def hostile(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters that are right, wrong, missing, or too many."""
    known: dict[str, st.SearchStrategy[Any]] = {}
    for name, inner in schema["properties"].items():
        fits = st.uuids().map(str) if name == IDEMPOTENCY else st.just(example(inner))
        known[name] = fits | LIKELY | TEXTS if inner.get("type") == "string" else fits | JSON
    needed = {name: known[name] for name in schema["required"]}
    others = {name: it for name, it in known.items() if name not in needed}
    close = st.fixed_dictionaries(needed, optional=others)
    return close | st.dictionaries(st.sampled_from([*known, "x"]) | TEXTS, JSON, max_size=4)


@pytest.mark.hypothesis  # the property is inside, where a gateway is
@pytest.mark.parametrize("name", sorted(METHODS))
async def test_no_parameters_bring_a_method_down(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with inside(tmp_path) as it:

        @examples(25, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
        @given(hostile(METHODS[name].schema))
        def attack(params: dict[str, Any]) -> None:
            frame = anyio.from_thread.run(it.answer, it.admin, name, params)
            assert frame["ok"] or frame["error"]["code"] != "INTERNAL"

        await anyio.to_thread.run_sync(attack)
    assert "Traceback" not in caplog.text
