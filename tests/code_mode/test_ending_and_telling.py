"""`exit` and `notify`: a program ends from anywhere, and tells whoever watches."""

import anyio
import pytest

from clawmode import CodeMode, CodeModeConfig, Pool, tool
from clawmode.tools.executor import CallEvent

pytestmark = pytest.mark.anyio


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def hang() -> None:
    """Never return."""
    await anyio.sleep_forever()


EXITS = [
    ("try { exit(5) } catch { return 1 } finally { text('no') }", 5),
    ("[1, 2].forEach((x) => { if (x === 2) exit({ x }) }); return 1", {"x": 2}),
    ("await tools.add({ a: 1, b: 2 }); exit('after'); return 1", "after"),
    ("setTimeout(() => exit('timer'), 1); await new Promise(() => {})", "timer"),
    ("const all = [1, 2, 3].map(async (n) => { await null; exit(n) }); await Promise.all(all)", 1),
    ("exit()", None),
    ("exit({ toJSON() { exit('inner'); } })", "inner"),
    ("await Promise.reject(1).catch(() => exit(2)); return 3", 2),
    ("Array.prototype.toString = 1; JSON.stringify = null; exit([undefined, 1n])", [None, "1"]),
]


@pytest.mark.covers("AD-7")
@pytest.mark.parametrize(("source", "value"), EXITS)
async def test_a_program_ends_at_once_with_the_value_of_exit(
    pool: Pool, source: str, value: object
) -> None:
    async with CodeMode(tools=[add, hang], pool=pool) as code_mode:
        result = await code_mode.exec(source)
        assert (result.status, result.value, result.output) == ("completed", value, [])
        assert (await code_mode.exec("return 1 + 1")).value == 2, "the worker goes on"


@pytest.mark.covers("AD-7")
async def test_exit_cancels_running_calls_and_says_so(pool: Pool) -> None:
    async with CodeMode(tools=[add, hang], pool=pool) as code_mode:
        result = await code_mode.exec(
            "text('kept'); tools.hang(); await tools.add({ a: 1, b: 2 }); exit('done')"
        )
        assert (result.value, result.output) == ("done", [{"type": "text", "text": "kept"}])
        assert result.notes == [
            "exit() ended the program while 1 of its calls were running: they were cancelled."
        ]


@pytest.mark.covers("AD-7")
@pytest.mark.parametrize(
    ("source", "unmade"),
    [
        ("tools.add({ a: 1, b: 2 }); exit('done')", 1),
        ("notify('x'); tools.search('x'); exit()", 0),
        ("await tools.add({ a: 1, b: 2 }); tools.add({ a: 1, b: 2 }); exit()", 1),
        ("for (let i = 0; i < 20; i++) tools.add({ a: 1, b: i }); exit()", 20),
        ("tools.add({ a: 1, b: 2 }); await yield_control(); exit()", 0),
    ],
)
async def test_exit_says_which_calls_were_not_made(pool: Pool, source: str, unmade: int) -> None:
    async with CodeMode(tools=[add, hang], pool=pool) as code_mode:
        result = await code_mode.exec(source)
        while result.status == "waiting":
            result = await code_mode.wait(result.run_id)
        text = f"exit() ended the program before {unmade} of its calls were made"
        assert [note.split(":")[0] for note in result.notes] == [text] * bool(unmade)


async def test_a_parked_program_can_exit(pool: Pool) -> None:
    async with CodeMode(tools=[add], pool=pool) as code_mode:
        parked = await code_mode.exec("await yield_control(); exit(7)")
        assert parked.status == "waiting"
        assert (await code_mode.wait(parked.run_id)).value == 7
        assert (await code_mode.wait(parked.run_id)).code == "invalid_input", "it has ended"


@pytest.mark.hostile
async def test_the_value_of_exit_has_the_limits_of_every_value(pool: Pool) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec("exit('x'.repeat(1e6))")
        assert (result.status, result.code) == ("failed", "output_limit_exceeded")
        assert (await code_mode.exec("return 1")).value == 1


# ---- notify ----


@pytest.mark.covers("AD-7")
async def test_watchers_are_told_while_the_program_still_runs(pool: Pool) -> None:
    seen: list[CallEvent] = []
    told = anyio.Event()

    def watch(event: CallEvent) -> None:
        seen.append(event)
        if event.update == "half":
            told.set()

    @tool
    async def until_told() -> str:
        """Wait until somebody was told."""
        with anyio.fail_after(10):
            await told.wait()
        return "told"

    async with CodeMode(tools=[until_told], pool=pool) as code_mode:
        code_mode.watch(watch)
        result = await code_mode.exec(
            "notify('half'); const r = await tools.until_told(); await notify({ n: 1 }); return r",
            call_id="model-1",
        )
    assert (result.value, result.output, result.notes) == ("told", [], [])
    notices = [event for event in seen if event.tool_id == "notify"]
    assert [event.update for event in notices] == ["half", '{"n":1}']
    assert {(event.phase, event.parent_id) for event in notices} == {("update", "model-1")}


async def test_a_failing_program_tells_too(pool: Pool) -> None:
    seen: list[object] = []
    async with CodeMode(pool=pool) as code_mode:
        code_mode.watch(lambda event: seen.append(event.update))
        await code_mode.exec("notify('last words'); throw new Error('x')")
    assert seen == ["last words"]


@pytest.mark.hostile
async def test_a_flood_of_messages_reaches_watchers_as_a_trickle(pool: Pool) -> None:
    seen: list[str] = []
    config = CodeModeConfig(timeout_ms=30_000)  # to copy 300 MB takes seconds on a busy machine
    async with CodeMode(pool=pool, config=config) as code_mode:
        code_mode.watch(lambda event: seen.append(str(event.update)))
        source = "for (let i = 0; i < 3000; i++) notify('x'.repeat(1e5)); return 'fine'"
        assert (await code_mode.exec(source)).value == "fine"
    assert 0 < len(seen) <= 200
    assert max(map(len, seen)) == 1_000
