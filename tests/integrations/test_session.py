"""What all adapters rely on: calls that are entered again, nested calls, and their questions."""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import until

from clawmode import ApprovalNeeded, Hooks, Pool, SqliteStore, ToolContext
from clawmode.code_mode.shelves import ShelfLimits
from clawmode.exceptions import ConfigurationError
from clawmode.integrations import records, require
from clawmode.integrations.records import MAX_RECORDS, Answer, Outcome
from clawmode.integrations.session import RunEnds, Session
from clawmode.integrations.sessions import Sessions
from clawmode.tasks import hold
from clawmode.tools.hooks import ToolCallDecision
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"to": {"type": "string"}},
    "required": ["to"],
}
SEND = {"code": "const r = await tools.send({to: 'Ann'}); return 'sent: ' + r"}
BOTH = {"code": "return await Promise.all(['Ann', 'Bob'].map(to => tools.send({to})))"}
SEND_TWICE = {"code": "return [await tools.send({to: 'Ann'}), await tools.send({to: 'Bob'})]"}

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


class Mail:
    """A framework whose tool `send` needs approval, and `look` does not."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.seen: list[tuple[str, str]] = []
        self.started = anyio.Event()

    async def send(self, context: str, params: JsonObject, call: ToolContext) -> object:
        if not call.approved:
            raise ApprovalNeeded(f"Send a mail to {params['to']}?")
        self.sent.append(f"{context}: {params['to']}")
        return "ok"

    async def look(self, context: str, params: JsonObject, call: ToolContext) -> object:
        self.seen.append((context, where.get()))
        return {"context": context}

    async def hang(self, context: str, params: JsonObject, call: ToolContext) -> object:
        self.started.set()
        await asyncio.Event().wait()
        return None

    def offer(self, session: Session[str]) -> Session[str]:
        nothing: JsonObject = {}
        send = session.tool("send", "Send a mail.", SCHEMA, self.send)
        look = session.tool("look", "Look around.", nothing, self.look)
        session.code_mode.offer([send, look, session.tool("hang", "Hang.", nothing, self.hang)])
        return session


@asynccontextmanager
async def opened(
    pool: Pool, mail: Mail, name: str = "s1", **given: Any
) -> AsyncIterator[Session[str]]:
    sessions = Sessions[str](pool=pool, **given)
    try:
        yield mail.offer(await sessions.open(name))
    finally:
        await sessions.aclose()


def store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "state")


def approved(outcome: Outcome) -> dict[str, Answer]:
    """Answers the questions that were shown, as front ends do."""
    return {each.id: Answer(True) for each in outcome.asked}


@pytest.mark.covers("FW-1", "FW-2")
async def test_a_question_pauses_the_call_and_its_answer_continues_it(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        first = await session.call("exec", SEND, "c1", "run 1")
        assert [(each.tool, each.input, each.title) for each in first.asked] == [
            ("send", {"to": "Ann"}, "Send a mail to Ann?")
        ]
        assert await session.asked(first.run_id) == first.asked
        done = await session.call("exec", SEND, "c1", "run 2", answers=Answer(True))
        assert (done.result["value"], mail.sent) == ("sent: ok", ["run 2: Ann"])
        assert await session.asked(first.run_id) == ()
        again = await session.call("exec", SEND, "c1", "run 3")
        assert (again.text, mail.sent) == (done.text, ["run 2: Ann"])


@pytest.mark.covers("FW-1")
async def test_another_process_continues_a_call_with_its_answer(pool: Pool, tmp_path: Path) -> None:
    mail = Mail()
    async with opened(pool, mail, store=store(tmp_path)) as session:
        first = await session.call("exec", SEND, "c1", "A")
    async with opened(pool, mail, store=store(tmp_path)) as session:
        assert [len(each.asked) for each in await session.pauses("exec", SEND, "c1")] == [1]
        unanswered = await session.call("exec", SEND, "c1", "B")
        assert (unanswered.asked, mail.sent) == (first.asked, [])
    async with opened(pool, mail, store=store(tmp_path)) as session:
        done = await session.call(
            "exec", SEND, "c1", "C", answers={first.asked[0].id: Answer(True)}
        )
        assert (done.result["value"], mail.sent) == ("sent: ok", ["C: Ann"])
        assert await session.pauses("exec", SEND, "c1") == []


async def test_a_program_that_sleeps_after_its_answer_is_waited_for(pool: Pool) -> None:
    mail = Mail()
    slow = {"code": "await tools.send({to: 'Ann'}); await new Promise(r => setTimeout(r, 150))"}
    async with opened(pool, mail) as session:
        await session.call("exec", slow, "c1", "")
        done = await session.call("exec", slow, "c1", "", answers=Answer(True))
        assert (done.result["status"], mail.sent) == ("completed", [": Ann"])


@pytest.mark.covers("FW-2")
async def test_a_denial_reaches_the_program_with_its_reason(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        await session.call("exec", SEND, "c1", "")
        done = await session.call("exec", SEND, "c1", "", answers=Answer(False, "Ann is away"))
        assert done.result["status"] == "failed"
        assert "Ann is away" in str(done.result["error"])
        assert mail.sent == []


async def test_calls_that_ask_at_once_are_answered_one_by_one(pool: Pool) -> None:
    mail = Mail()
    source = BOTH | {"code": BOTH["code"].replace("Promise.all", "Promise.allSettled")}
    async with opened(pool, mail) as session:
        first = await session.call("exec", source, "c1", "")
        ann, bob = sorted(first.asked, key=lambda each: str(each.input["to"]))
        second = await session.call("exec", source, "c1", "", answers={bob.id: Answer(True)})
        assert (second.asked, mail.sent) == ((ann,), [": Bob"])
        done = await session.call("exec", source, "c1", "", answers=Answer(False))
        assert mail.sent == [": Bob"]
        states = [each["status"] for each in done.result["value"]]  # type: ignore[union-attr]
        assert states == ["rejected", "fulfilled"]


@pytest.mark.covers("FW-2")
async def test_an_answer_is_only_for_the_questions_that_were_shown(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        await session.call("exec", SEND_TWICE, "c1", "")
        second = await session.call("exec", SEND_TWICE, "c1", "", answers=Answer(True))
        assert [each.input for each in second.asked] == [{"to": "Bob"}]
        assert mail.sent == [": Ann"]
        assert len(await session.pauses("exec", SEND_TWICE, "c1")) == 2
        await session.call("exec", SEND_TWICE, "c1", "", answers=Answer(True))
        assert mail.sent == [": Ann", ": Bob"]


async def test_always_holds_for_later_calls_of_the_session(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        await session.call("exec", SEND_TWICE, "c1", "")
        done = await session.call("exec", SEND_TWICE, "c1", "", answers=Answer(True, always=True))
        assert (done.asked, mail.sent) == ((), [": Ann", ": Bob"])


@pytest.mark.hostile
@pytest.mark.covers("FW-2")
async def test_an_answer_does_not_hold_for_an_input_that_was_changed_since(
    pool: Pool, tmp_path: Path
) -> None:
    mail, hooks = Mail(), Hooks()
    hooks.before_tool_call(
        lambda call: ToolCallDecision(params={"to": "Eve"}) if call.tool_name == "send" else None
    )
    async with opened(pool, mail, store=store(tmp_path)) as session:
        await session.call("exec", SEND, "c1", "")
    async with opened(pool, mail, store=store(tmp_path), hooks=hooks) as session:
        asked = await session.call("exec", SEND, "c1", "", answers=Answer(True))
        assert ([each.input for each in asked.asked], mail.sent) == ([{"to": "Eve"}], [])


async def test_a_freeform_program_is_answered_and_ended_in_the_dialect_of_codex(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail, config={"dialect": "codex"}) as session:
        first = await session.call("exec", SEND["code"], "c1", "")
        given = {"cell_id": first.run_id}
        done = await session.call("wait", given, "c2", "", answers=Answer(True))
        assert (done.result["value"], mail.sent) == ("sent: ok", [": Ann"])
        again = await session.call("exec", SEND["code"], "c3", "")
        ended = await session.call("wait", {"cell_id": again.run_id, "terminate": True}, "c4", "")
        assert (ended.result["status"], mail.sent) == ("failed", [": Ann"])
        assert await session.asked(again.run_id) == ()


@dataclass
class Odd:
    """A result that is not JSON."""

    raw: bytes
    error: Exception
    number: float


@pytest.mark.hostile
async def test_results_of_frameworks_that_are_not_json_are_converted(pool: Pool) -> None:
    async def odd(context: str, params: JsonObject, call: ToolContext) -> object:
        return [Odd(b"\xff", ValueError("no"), float("nan")), object]

    async with opened(pool, Mail()) as session:
        session.code_mode.offer([session.tool("odd", "", {}, odd)])
        done = await session.call("exec", {"code": "return await tools.odd()"}, "c1", "")
        converted = {"raw": "_w==", "error": "no", "number": None}
        assert done.result["value"] == [converted, "<class 'object'>"]


async def test_the_model_can_wait_for_a_program_whose_question_was_answered(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        first = await session.call("exec", SEND, "c1", "")
        given = {"runId": first.run_id}
        done = await session.call("wait", given, "c2", "W", answers=Answer(True))
        assert (done.result["value"], mail.sent) == ("sent: ok", ["W: Ann"])
        assert (await session.call("wait", given, "c2", "W")).text == done.text


@pytest.mark.covers("FW-3")
async def test_nested_calls_get_the_context_and_the_variables_of_their_call(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:

        async def enter(place: str) -> Outcome:
            where.set(place)
            return await session.call("exec", {"code": "return await tools.look()"}, place, place)

        async with anyio.create_task_group() as tasks:
            for place in ("here", "there"):
                tasks.start_soon(enter, place)
    assert sorted(mail.seen) == [("here", "here"), ("there", "there")]


@pytest.mark.covers("FW-3")
async def test_a_cancelled_run_ends_its_program_and_nested_calls(pool: Pool) -> None:
    mail = Mail()
    source = {"code": "await tools.hang(); await tools.look(); return 1"}
    async with opened(pool, mail) as session:
        entered = asyncio.create_task(session.call("exec", source, "c1", ""))
        await mail.started.wait()
        entered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entered
        assert session.code_mode.cells() == {}
        again = await session.call("exec", source, "c1", "")
        assert (again.result["code"], mail.seen) == ("aborted", [])


async def test_a_nested_call_may_end_the_whole_run(pool: Pool) -> None:
    mail = Mail()

    async def trip(context: str, params: JsonObject, call: ToolContext) -> object:
        raise RunEnds from KeyError("tripwire")

    async with opened(pool, mail) as session:
        look = session.tool("look", "", {}, mail.look)
        session.code_mode.offer([session.tool("trip", "", {}, trip), look])
        source = {"code": "try { await tools.trip() } catch { await tools.look() }"}
        with pytest.raises(KeyError, match="tripwire"):
            await session.call("exec", source, "c1", "")
        assert (session.code_mode.cells(), mail.seen) == ({}, [])
        assert (await session.call("exec", {"code": "return 1"}, "c2", "")).result["value"] == 1


async def test_the_same_call_entered_twice_at_once_runs_one_program(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        source = {"code": "await tools.look(); return 1"}
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(session.call, "exec", source, "c1", "")
    assert len(mail.seen) == 1


async def test_two_waits_at_once_for_one_program_do_not_disturb_each_other(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        source = "await yield_control(); const seen = await tools.look(); await tools.hang()"
        made = await session.call("exec", {"code": source}, "c1", "run 1")
        given = {"runId": made.run_id}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.call, "wait", given, "w1", "run 1")
            await until(lambda: made.run_id in session._locks)
            refused = await session.call("wait", given, "w2", "run 2")
            assert (refused.result["code"], session.code_mode.cells().keys()) == (
                "invalid_input",
                {made.run_id},
            )
            await mail.started.wait()
            tasks.cancel_scope.cancel()
        assert [context for context, _ in mail.seen] == ["run 1"]


@pytest.mark.covers("FW-2")
async def test_of_two_waits_at_once_one_asks_and_its_answer_counts(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        code = f"await yield_control(); {SEND['code']}"
        made = await session.call("exec", {"code": code}, "c1", "")
        waits: dict[str, Outcome] = {}

        async def wait(call_id: str, answers: dict[str, Answer] | None = None) -> None:
            given = {"runId": made.run_id}
            waits[call_id] = await session.call("wait", given, call_id, "", answers=answers)

        async with anyio.create_task_group() as tasks:
            for name in ("w1", "w2"):
                tasks.start_soon(wait, name)
        (asks,) = [name for name, outcome in waits.items() if outcome.asked]
        await wait(asks, approved(waits[asks]))
        assert (waits[asks].result["value"], mail.sent) == ("sent: ok", [": Ann"])


async def test_a_call_that_has_asked_stays_answerable_while_another_waits(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        first = await session.call("exec", SEND, "c1", "")
        async with hold(session._locks, first.run_id), anyio.create_task_group() as tasks:
            tasks.start_soon(session.call, "exec", SEND, "c1", "")
            await until(lambda: len(session._locks) == 2)
            tasks.cancel_scope.cancel()
        done = await session.call("exec", SEND, "c1", "", answers=approved(first))
        assert (done.result["value"], mail.sent) == ("sent: ok", [": Ann"])


async def test_a_cancelled_call_leaves_nothing_in_memory(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        entered = asyncio.create_task(
            session.call("exec", {"code": "await tools.hang()"}, "c1", "")
        )
        await mail.started.wait()
        entered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entered
        assert (session._entries, session._locks) == ({}, {})


async def test_an_id_that_the_model_uses_again_is_another_call(pool: Pool) -> None:
    mail = Mail()
    async with opened(pool, mail) as session:
        source = {"code": "await tools.look(); return 1"}
        for _ in range(2):
            made = await session.call("exec", source, "c1", "", again=False)
            assert made.result["value"] == 1
        assert len(mail.seen) == 2
        slow = await session.call("exec", {"code": "await yield_control(); return 2"}, "c1", "")
        given = {"runId": slow.run_id}
        assert (await session.call("wait", given, "c1", "", again=False)).result["value"] == 2


@pytest.mark.hostile
@pytest.mark.covers("FW-1")
async def test_a_program_that_died_before_it_waited_is_not_started_again(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail()
    source = {"code": "await tools.look(); return 1"}
    async with opened(pool, mail, store=store(tmp_path)) as session:

        async def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt  # as far as the record is concerned: nothing more is written

        monkeypatch.setattr(session.code_mode, "call", die)
        with pytest.raises(KeyboardInterrupt):
            await session.call("exec", source, "c1", "")
    async with opened(pool, mail, store=store(tmp_path)) as session:
        again = await session.call("exec", source, "c1", "")
        assert (again.result["status"], mail.seen) == ("failed", [])
        assert "may have taken effect" in str(again.result["error"])


async def test_an_adapter_keeps_data_with_a_call(pool: Pool, tmp_path: Path) -> None:
    async with opened(pool, Mail(), store=store(tmp_path)) as session:
        assert await session.kept("c1") is None
        await session.keep("c1", b"\x00\xff")
        await session.keep("c2", None)
    async with opened(pool, Mail(), store=store(tmp_path)) as session:
        assert (await session.kept("c1"), await session.kept("c2")) == (b"\x00\xff", None)


@pytest.mark.hostile
async def test_sessions_do_not_see_each_other(pool: Pool) -> None:
    mail, sessions = Mail(), Sessions[str](pool=pool)
    one, other = [mail.offer(await sessions.open(name)) for name in ("one", "other")]
    first = await one.call("exec", SEND, "c1", "one")
    stolen = await other.call("wait", {"runId": first.run_id}, "c1", "other", answers=Answer(True))
    assert (stolen.result["status"], mail.sent) == ("failed", [])
    assert (await other.call("exec", SEND, "c1", "other")).asked
    await one.call("exec", SEND, "c1", "one", answers=Answer(True))
    assert mail.sent == ["one: Ann"]
    await sessions.aclose()


async def test_old_records_make_room(pool: Pool) -> None:
    async with opened(pool, Mail()) as session:
        for number in range(MAX_RECORDS.rows + 5):
            await session.call("wait", {"runId": "cm_" + f"{number:032x}"}, f"c{number}", "")
        assert await session.call("exec", {"code": "return 1"}, "last", "")


@pytest.mark.hostile
@pytest.mark.covers("FW-1")
async def test_a_program_that_waits_is_not_forgotten_however_many_calls_follow(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", ShelfLimits(rows=8, size=1 << 20))
    mail = Mail()
    source = {"code": "await tools.look(); return await tools.send({to: 'Ann'})"}
    async with opened(pool, mail) as session:
        first = await session.call("exec", source, "c1", "")
        await session.keep("c1", b"updates")
        for number in range(30):
            await session.call("exec", {"code": "return 1"}, f"other {number}", "")
        assert await session.kept("c1") == b"updates"
        done = await session.call("exec", source, "c1", "", answers=approved(first))
        assert (done.result["value"], mail.sent, len(mail.seen)) == ("ok", [": Ann"], 1)


async def test_programs_that_nobody_answers_do_not_fill_the_session(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", ShelfLimits(rows=8, size=1 << 20))
    async with opened(pool, Mail()) as session:
        for number in range(4):
            assert (await session.call("exec", SEND, f"c{number}", "")).asked
        with pytest.raises(ConfigurationError, match="wait for people"):
            await session.call("exec", SEND, "one more", "")
        later = time.time() + session.code_mode.config.snapshot_ttl_seconds + 1
        monkeypatch.setattr(time, "time", lambda: later)
        done = await session.call("exec", {"code": "return 1"}, "last", "")
        assert done.result["value"] == 1


@pytest.mark.hostile
@pytest.mark.covers("FW-6")
async def test_an_answer_to_a_program_that_is_not_here_starts_nothing(pool: Pool) -> None:
    mail = Mail()
    source = {"code": "await tools.look(); return await tools.send({to: 'Ann'})"}
    async with opened(pool, mail) as session:
        first = await session.call("exec", source, "c1", "")
    async with opened(pool, mail) as session:  # the first was in the memory of another process
        answered = await session.call("exec", source, "c1", "", answers=approved(first))
        assert (answered.result["code"], mail.sent) == ("runtime_unavailable", [])
        assert len(mail.seen) == 1


@pytest.mark.covers("FW-6")
async def test_a_question_is_answered_in_another_process_while_the_first_one_lives(
    pool: Pool, tmp_path: Path
) -> None:
    mail = Mail()
    async with (
        opened(pool, mail, store=store(tmp_path)) as one,
        opened(pool, mail, store=store(tmp_path)) as other,
    ):
        first = await one.call("exec", SEND_TWICE, "c1", "one")
        second = await other.call("exec", SEND_TWICE, "c1", "other", answers=approved(first))
        assert ([each.input["to"] for each in second.asked], mail.sent) == (["Bob"], ["other: Ann"])
        # The first process still has the old question, and must not show or answer it.
        again = await one.call("exec", SEND_TWICE, "c1", "one", answers=approved(first))
        assert again.asked == second.asked
        assert len(await one.pauses("exec", SEND_TWICE, "c1")) == 2
        done = await other.call("exec", SEND_TWICE, "c1", "other", answers=approved(second))
        assert done.result["value"] == ["ok", "ok"]
        assert (await one.call("exec", SEND_TWICE, "c1", "one")).result["value"] == ["ok", "ok"]
    assert mail.sent == ["other: Ann", "other: Bob"]


@pytest.mark.hostile
@pytest.mark.covers("FW-6")
async def test_the_same_answer_in_two_processes_at_once_takes_effect_once(
    pool: Pool, tmp_path: Path
) -> None:
    mail, made = Mail(), list[Outcome]()
    async with (
        opened(pool, mail, store=store(tmp_path)) as one,
        opened(pool, mail, store=store(tmp_path)) as other,
    ):
        first = await one.call("exec", SEND_TWICE, "c1", "")

        async def answer(session: Session[str]) -> None:
            made.append(await session.call("exec", SEND_TWICE, "c1", "", answers=approved(first)))

        async with anyio.create_task_group() as tasks:
            for session in (one, other):
                tasks.start_soon(answer, session)
        assert (mail.sent, len(await one.pauses("exec", SEND_TWICE, "c1"))) == ([": Ann"], 2)
        second = next(each for each in made if each.asked)
        done = await other.call("exec", SEND_TWICE, "c1", "", answers=approved(second))
        assert (done.result["value"], mail.sent) == (["ok", "ok"], [": Ann", ": Bob"])


async def test_a_session_stays_open_while_a_model_thinks(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.integrations.sessions.MAX_SESSIONS", 2)
    sessions, names = Sessions[str](pool=pool), ["a", "b", "c", "d"]
    first, *_ = [await sessions.open(name) for name in names]
    done = await first.call("exec", {"code": "return 1"}, "c1", "")
    assert done.result["value"] == 1
    monkeypatch.setattr("clawmode.integrations.sessions.TURN_SECONDS", -1)
    await sessions.open("e")
    closed = await first.call("exec", {"code": "return 1"}, "c2", "")
    assert closed.result["code"] == "runtime_unavailable"
    assert await sessions.open("a") is not first
    await sessions.aclose()


async def test_a_second_event_loop_is_told_apart(pool: Pool) -> None:
    sessions = Sessions[str](pool=pool)
    await sessions.open("s")

    def elsewhere() -> None:
        with pytest.raises(ConfigurationError, match="Two event loops"):
            asyncio.run(sessions.open("s"))

    await anyio.to_thread.run_sync(elsewhere)
    await sessions.aclose()


def test_a_misspelt_setting_is_rejected() -> None:
    wrong: Any = {"stor": None}
    with pytest.raises(TypeError, match="unknown settings: stor; known"):
        Sessions[str](**wrong)


@pytest.mark.covers("FW-4")
def test_a_framework_that_does_not_fit_is_named_with_its_range_and_extra() -> None:
    require("pytest", "tests", "1", "999")
    with pytest.raises(ImportError, match=r"needs pytest >=1,<2, but .* is installed: .*\[tests\]"):
        require("pytest", "tests", "1", "2")
    with pytest.raises(ImportError, match="needs pytest >=999,<1000, but"):
        require("pytest", "tests", "999", "1000")
    with pytest.raises(ImportError, match=r"needs no-such-framework .*, which is not installed"):
        require("no-such-framework", "tests", "1", "2")
