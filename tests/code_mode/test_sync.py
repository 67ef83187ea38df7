"""`CodeMode.sync`, and event loops other than asyncio's own."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import trio
import uvloop

from clawmode import CodeMode, ConfigurationError, NotOpen, Pool, ProgramFailed, UnknownTool, tool
from clawmode.code_mode.sync import SyncArguments, SyncCodeMode

SECONDS = 30


def add(a: int, b: int) -> int:
    return a + b


@tool
async def where() -> str:
    """Tell in which thread an async tool runs."""
    return threading.current_thread().name


@pytest.fixture(scope="module")
def code_mode() -> Iterator[SyncCodeMode]:
    with CodeMode.sync(tools=[add, where]) as opened:
        yield opened


@pytest.mark.covers("PY-11")
def test_programs_and_calls_of_a_model_run_without_an_event_loop(code_mode: SyncCodeMode) -> None:
    assert code_mode.exec("return tools.add({ a: 1, b: 2 })").unwrap() == 3
    assert code_mode.exec("return await tools.where()").unwrap() == "clawmode-sync"
    result = code_mode.call("exec", {"code": "return tools.add({ a: 2, b: 2 })"}, call_id="c")
    assert (result["status"], result["value"]) == ("completed", 4)
    (first, second) = code_mode.definitions("anthropic")
    assert (first["name"], second["name"]) == ("exec", "wait")
    waiting = code_mode.exec("await yield_control(); return 5")
    assert waiting.status == "waiting"
    assert code_mode.wait(waiting.run_id).unwrap() == 5
    waiting = code_mode.exec("await yield_control(); return 6")
    assert code_mode.abort(waiting.run_id)
    assert not code_mode.abort(waiting.run_id)


@pytest.mark.covers("PY-11")
def test_failures_are_those_of_the_async_object(code_mode: SyncCodeMode) -> None:
    with pytest.raises(ProgramFailed, match="no good"):
        code_mode.exec('throw new Error("no good")').unwrap()
    with pytest.raises(UnknownTool):
        code_mode.call("other", {})
    with pytest.raises(ConfigurationError, match="timeoutMs"):
        CodeMode.sync(config={"timeoutMs": "soon"})


@pytest.mark.covers("PY-11")
def test_many_threads_share_the_object(code_mode: SyncCodeMode) -> None:
    def compute(n: int) -> Any:
        return code_mode.exec(f"return tools.add({{ a: {n}, b: 1 }})").unwrap()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(compute, range(24))) == list(range(1, 25))


@pytest.mark.anyio
@pytest.mark.covers("PY-11")
async def test_it_works_where_an_event_loop_runs(code_mode: SyncCodeMode) -> None:
    """As in a notebook: the call blocks, but does not need the loop."""
    assert code_mode.exec("return 1").unwrap() == 1
    assert (await asyncio.to_thread(code_mode.exec, "return 2")).unwrap() == 2
    with CodeMode.sync(tools=[add]) as made_here:
        assert made_here.exec("return tools.add({ a: 1, b: 2 })").unwrap() == 3


def test_tools_offered_later_and_watchers_are_used(code_mode: SyncCodeMode) -> None:
    seen: list[str] = []
    stop = code_mode.watch(lambda event: seen.append(event.phase))

    def twice(a: int) -> int:
        return 2 * a

    code_mode.offer([twice, add, where])
    assert code_mode.exec("return tools.twice({ a: 2 })").unwrap() == 4
    stop()
    assert seen[0] == "start"
    assert seen[-1] == "end"
    assert code_mode.missing_servers == {}


@pytest.mark.covers("PY-11")
@pytest.mark.hostile
def test_an_async_tool_that_calls_the_object_fails_instead_of_waiting_for_itself() -> None:
    holder: list[SyncCodeMode] = []

    @tool
    async def again() -> Any:
        """Call the object from its own loop."""
        return holder[0].exec("return 1").unwrap()

    def nested() -> Any:
        """Call the object from a thread, which is fine."""
        return holder[0].exec("return 7").unwrap()

    with CodeMode.sync(tools=[again, nested]) as opened:
        holder.append(opened)
        result = opened.exec("return tools.again()")
        assert result.status == "failed"
        assert "plain `def`" in str(result.error)
        assert opened.exec("return tools.nested()").unwrap() == 7


@pytest.mark.covers("PY-11")
def test_it_is_opened_and_closed_once() -> None:
    closed = CodeMode.sync()
    with pytest.raises(NotOpen, match="is not open"):
        closed.exec("return 1")
    with closed:
        assert closed.exec("return 1").unwrap() == 1
    closed.close()
    with pytest.raises(NotOpen):
        closed.exec("return 1")
    with pytest.raises(ConfigurationError, match="opened once"):
        closed.start()


def test_it_takes_the_arguments_of_the_class_but_no_objects_of_another_loop() -> None:
    taken = set(inspect.signature(CodeMode).parameters)
    assert taken - set(SyncArguments.__annotations__) == {"pool"}
    foreign: dict[str, Any] = {"pool": Pool()}
    with pytest.raises(ConfigurationError, match="has its own"):
        CodeMode.sync(**foreign)


FORGOTTEN = """
from clawmode import CodeMode
code_mode = CodeMode.sync()
code_mode.start()
print(code_mode.exec("return 3").unwrap())
"""

STOPPED = """
import os, signal, threading
from clawmode import CodeMode
def stop():
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(0.2)
with CodeMode.sync(tools=[stop]) as code_mode:
    try:
        code_mode.exec("tools.stop(); await new Promise((go) => setTimeout(go, 20_000))")
    except KeyboardInterrupt:
        print("stopped", code_mode.exec("return 4").unwrap())
"""


@pytest.mark.covers("PY-11")
@pytest.mark.parametrize(("program", "says"), [(FORGOTTEN, "3\n"), (STOPPED, "stopped 4\n")])
def test_a_script_that_forgets_to_close_ends_and_ctrl_c_ends_a_call(
    program: str, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, says, "")


def test_a_script_that_forgets_to_close_is_warned_where_python_shows_such_warnings() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", FORGOTTEN],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert "was not closed" in done.stderr


@pytest.mark.covers("PY-11")
def test_an_object_that_is_dropped_warns_and_ends_its_thread() -> None:
    before = {each for each in threading.enumerate() if each.name == "clawmode-sync"}
    opened = CodeMode.sync().start()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del opened
    for each in threading.enumerate():
        if each.name in ("clawmode-sync", "clawmode-close") and each not in before:
            each.join(SECONDS)
            assert not each.is_alive()


# ---- Other event loops ----


async def computes() -> Any:
    async with CodeMode(tools=[add]) as code_mode:
        return (await code_mode.exec("return tools.add({ a: 1, b: 2 })")).unwrap()


@pytest.mark.covers("PY-12")
def test_programs_run_under_uvloop() -> None:
    assert uvloop.run(computes()) == 3


@pytest.mark.covers("PY-12")
def test_trio_is_refused_with_a_way_out_which_works() -> None:
    with pytest.raises(ConfigurationError, match=r"CodeMode\.sync"):
        anyio.run(computes, backend="trio")

    async def way_out() -> Any:
        with CodeMode.sync(tools=[add]) as code_mode:
            made = await trio.to_thread.run_sync(code_mode.exec, "return tools.add({ a: 1, b: 2 })")
            return made.unwrap()

    assert trio.run(way_out) == 3


def test_an_error_of_the_arguments_is_the_only_one_in_the_traceback() -> None:
    with pytest.raises(ConfigurationError) as wrong:
        CodeMode.sync(policy={"deny": ["group:runtme"]})
    assert wrong.value.__context__ is None
