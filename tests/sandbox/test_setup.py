"""What a run adds to the image: its catalog and namespaces, once per catalog, not once per cell."""

import hashlib
import json
import time
from collections.abc import AsyncIterator

import pytest

from clawmode.sandbox.pool import Pool
from clawmode.sandbox.process import WorkerProcess
from clawmode.sandbox.protocol import (
    MAX_SETUPS,
    Completion,
    Limits,
    Resume,
    Settlement,
    Start,
    Suspension,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def single() -> AsyncIterator[Pool]:
    async with Pool(size=1, max_size=1) as opened:
        yield opened


def setup_of(names: list[str], scope: object = None) -> bytes:
    namespaces: list[object] = []
    if scope is not None:
        namespaces.append({"id": "ns", "global": "Issues", "scope": scope})
    return json.dumps(
        {
            "tools": [{"id": f"openclaw:core:{name}", "name": name} for name in names],
            "names": {name: f"openclaw:core:{name}" for name in names},
            "namespaces": namespaces,
        }
    ).encode()


async def run(pool: Pool, source: str, setup: bytes, **options: object) -> object:
    key = hashlib.sha256(setup).digest()
    start = Start(source, setup=key, **options)  # pyrefly: ignore[bad-argument-type]
    outcome = await pool.step(pool.cell(), start, time.monotonic() + 10, setup)
    return json.loads(outcome.value) if isinstance(outcome, Completion) else outcome


async def test_a_cell_finds_the_catalog_of_its_run(single: Pool) -> None:
    setup = setup_of(["read", "write"])
    source = "return [ALL_TOOLS.map((t) => t.name), typeof tools.read, tools.write.name]"
    assert await run(single, source, setup) == [["read", "write"], "function", "write"]


async def test_a_convenience_function_calls_by_exact_id(single: Pool) -> None:
    idle = await run(single, "return await tools.read({ path: 'a' })", setup_of(["read"]))
    assert isinstance(idle, Suspension)
    assert idle.requests[0].args == b'["openclaw:core:read",{"path":"a"}]'


@pytest.mark.covers("CA-5")
async def test_tools_with_names_of_object_members_break_nothing(single: Pool) -> None:
    names = ["toString", "constructor", "hasOwnProperty", "valueOf", "then"]
    source = """const missing = typeof tools.isPrototypeOf;
const called = tools.constructor({ a: 1 });
return [missing, typeof tools.toString, await called]"""
    idle = await run(single, source, setup_of(names))
    assert isinstance(idle, Suspension)
    assert idle.requests[0].args == b'["openclaw:core:constructor",{"a":1}]'


async def test_namespaces_are_globals_with_callable_paths(single: Pool) -> None:
    scope = {
        "t": "o",
        "v": {
            "repo": {"t": "v", "v": {"name": "x"}},
            "list": {"t": "f"},
            "deep": {"t": "a", "v": [{"t": "v", "v": 1}, {"t": "f"}]},
        },
    }
    source = """const a = Issues.list({ state: "open" }, 2), b = namespaces.Issues.deep[1]();
return [Issues.repo.name, Issues === namespaces.Issues, await a, await b]"""
    idle = await run(single, source, setup_of([], scope))
    assert isinstance(idle, Suspension)
    assert [(request.method, json.loads(request.args)) for request in idle.requests] == [
        ("namespace", ["ns", ["list"], [{"state": "open"}, 2]]),
        ("namespace", ["ns", ["deep", "1"], []]),
    ]


@pytest.mark.covers("CA-8")
async def test_one_runs_catalog_is_not_in_another_runs_cell(single: Pool) -> None:
    await run(single, "ALL_TOOLS.push('x'); tools.secret = 1; return 1", setup_of(["secret"]))
    source = "return [ALL_TOOLS, Object.keys(tools)]"
    assert await run(single, source, setup_of(["other"])) == [
        [{"id": "openclaw:core:other", "name": "other"}],
        ["search", "describe", "call", "other"],
    ]


async def test_a_setup_is_sent_to_a_worker_once(
    single: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    ask = WorkerProcess.ask

    async def counted(self: WorkerProcess, question: object, deadline: float) -> object:
        sent.append(getattr(question, "kind", ""))
        return await ask(self, question, deadline)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(WorkerProcess, "ask", counted)
    for _ in range(3):
        assert await run(single, "return ALL_TOOLS.length", setup_of(["a"])) == 1
    assert sent == ["install", "start", "start", "start"]


async def test_a_worker_forgets_the_oldest_setups(single: Pool) -> None:
    for number in [*range(MAX_SETUPS + 3), 0, 1]:
        names = [f"t{number}"]
        assert await run(single, "return ALL_TOOLS[0].name", setup_of(names)) == names[0]


async def test_a_cell_of_a_large_catalog_is_frozen_and_restored_without_it(single: Pool) -> None:
    setup = setup_of([f"tool_{number}" for number in range(1000)])
    key = hashlib.sha256(setup).digest()
    cell, deadline = single.cell(), time.monotonic() + 10
    source = "const r = await tools.tool_7(); return [r, ALL_TOOLS.length, typeof tools.tool_999]"
    idle = await single.step(cell, Start(source, setup=key), deadline, setup)
    assert isinstance(idle, Suspension)
    frozen = await single.freeze(cell)
    assert len(frozen.pages) < 300_000
    async with Pool(size=1) as other:
        outcome = await other.step(
            other.cell(frozen), Resume((Settlement(1, True, b"5"),)), time.monotonic() + 10
        )
    assert outcome == Completion(b'[5,1000,"function"]')


@pytest.mark.covers("EX-12")
async def test_the_heap_limit_counts_above_the_catalog(single: Pool) -> None:
    setup = setup_of([f"tool_{number}" for number in range(2000)])
    source = "return new Uint8Array(900000).length"
    limits = Limits(memory_bytes=1 << 20)
    assert await run(single, source, setup, limits=limits) == 900000
