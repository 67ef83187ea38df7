"""More calls at once than may run: they wait in order, across parks and processes."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.code_mode.test_durable import parked_and_killed, times_called, waited

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, Pool, tool
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

MOST = 16 + 1024
"""The calls that a program may open at once by default: 16 run, and 64 for each wait."""


def fan_out(count: int, call: str = "tools.note({ n })") -> str:
    return f"return await Promise.all(Array.from({{ length: {count} }}, (_, n) => {call}))"


@pytest.fixture
def made() -> list[int]:
    return []


@pytest.fixture
def noting(pool: Pool, made: list[int]) -> CodeMode:
    @tool
    async def note(n: int) -> int:
        """Note a number."""
        made.append(n)
        return n

    return CodeMode(tools=[note], pool=pool)


@pytest.mark.covers("EX-4")
async def test_two_hundred_calls_at_once_simply_work(noting: CodeMode, made: list[int]) -> None:
    async with noting:
        result = await noting.exec(fan_out(200))
    assert (result.value, made) == (list(range(200)), list(range(200)))


@pytest.mark.covers("EX-4", "ER-too_many_pending_tool_calls")
async def test_one_call_over_the_limit_makes_none(noting: CodeMode, made: list[int]) -> None:
    async with noting:
        result = await noting.exec(fan_out(MOST + 1))
        assert (result.code, made) == ("too_many_pending_tool_calls", [])
        assert len(result.calls) + result.calls_omitted["not_started"] == MOST
        assert (await noting.exec(fan_out(MOST))).value == list(range(MOST))


async def test_queued_calls_are_made_while_the_program_goes_on_to_make_more(
    noting: CodeMode, made: list[int]
) -> None:
    """Every call that is answered makes the next one, behind all that wait already."""
    source = """let last = 500;
const again = async (n) => { await tools.note({ n }); if (last < 700) await again(last++) };
await Promise.all(Array.from({ length: 500 }, (_, n) => again(n)));"""
    async with noting:
        result = await noting.exec(source)
    assert result.status == "completed", result.error
    assert made == list(range(700))


@pytest.mark.covers("EX-4", "TR-3")
async def test_calls_that_wait_are_parked_with_their_program(pool: Pool) -> None:
    gate, made = anyio.Event(), list[int]()

    @tool
    async def held(n: int) -> int:
        """Wait for the test."""
        made.append(n)
        await gate.wait()
        return n

    async def finish(code_mode: CodeMode, result: CodeModeResult) -> CodeModeResult:
        while result.status == "waiting":
            assert result.run_id is not None
            result = await code_mode.wait(result.run_id)
        return result

    config = CodeModeConfig(timeout_ms=300)
    async with CodeMode(tools=[held], pool=pool, config=config) as code_mode:
        result = await code_mode.exec(fan_out(300, "tools.held({ n })"))
        rows: list[Any] = result.pending_tool_calls
        assert [row["state"] for row in rows] == ["running"] * 16 + ["queued"] * 129
        queue: JsonObject = {"id": "queue", "method": "call", "state": "queued", "count": 156}
        assert rows[-1] == queue
        assert made == list(range(16))
        again = await code_mode.wait(str(result.run_id))
        assert again.pending_tool_calls == rows
        gate.set()
        with anyio.fail_after(10):
            result = await finish(code_mode, again)
    assert result.value == list(range(300))
    assert made == list(range(300))


@pytest.mark.covers("EX-4", "WA-11")
async def test_calls_that_wait_outlive_a_killed_process(tmp_path: Path) -> None:
    result = await parked_and_killed(tmp_path, fan_out(170, 'tools.read({ name: "x" })'))
    assert result["pendingToolCalls"][-1]["count"] == 170 - 144
    assert times_called(tmp_path, "read-x") == 16
    await anyio.Path(tmp_path / "x").write_text("it")
    result = await waited(tmp_path, result["runId"])
    assert result["value"] == ["it"] * 170
    assert times_called(tmp_path, "read-x") == 170 + 16


@pytest.mark.hostile
@pytest.mark.covers("EX-4")
async def test_arguments_that_wait_count_as_memory_of_the_program(pool: Pool) -> None:
    made: list[int] = []

    @tool
    async def send(text: str) -> None:
        """Send a text."""
        made.append(len(text))

    config = CodeModeConfig(memory_limit_bytes=4 << 20)
    async with CodeMode(tools=[send], pool=pool, config=config) as code_mode:
        result = await code_mode.exec(fan_out(200, 'tools.send({ text: "x".repeat(40000) })'))
        assert (result.code, made) == ("memory_limit_exceeded", [])


@pytest.mark.hostile
async def test_a_program_cannot_reach_the_queue(noting: CodeMode, made: list[int]) -> None:
    """Setters on prototypes get nothing of it, and replaced functions change nothing."""
    source = """let seen = 0;
const trap = { get() { seen++ }, set(value) { seen += typeof value === "object" ? 1 : 0 } };
for (const name of ["start", "end", "list", "slot", "most", "resolve", "reject", "144", "145"]) {
  for (const holder of [Object.prototype, Array.prototype, Function.prototype]) {
    Object.defineProperty(holder, name, trap);
  }
}
Promise.prototype.then = Map.prototype.set = Map.prototype.get = () => { seen++ };
let last;
for (let n = 0; n < 200; n++) last = tools.note({ n });
await last;
return seen"""
    async with noting:
        result = await noting.exec(source)
    assert (result.value, sorted(made)) == (0, list(range(200)))
