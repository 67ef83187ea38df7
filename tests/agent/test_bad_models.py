"""Models that misbehave, over the real wires: a turn has a clear end, and the next one works."""

import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from tests.support.agent_driver import Agent, configured
from tests.support.ordeals import reply
from tests.support.waiting import undisturbed_time, until

# They take seconds, and here no clock of a test runs.
import clawmode.models.anthropic_sdk
import clawmode.models.openai_sdk  # noqa: F401
from clawmode import tool
from clawmode.agent import loop
from clawmode.agent.answers import MAX_ANSWER_CHARS
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest, Problem, RunResult
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.messages import ToolMessage
from clawmode.models.base import ModelError
from clawmode.sessions.history import History
from clawmode.sessions.store import SessionStore
from clawmode.testing import Raw, ScriptRequest, ScriptServer, Turn, call, pause, scripted, think

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]

WIRES = ["openai-completions", "openai-responses", "anthropic-messages"]
KEY = "sk-secret-of-the-test"
EVENTS = {"content-type": "text/event-stream"}
AGAIN = "once again"
MB = 1 << 20

Bad: TypeAlias = Turn | Callable[[ScriptRequest], Any]


@tool(effect="read")
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.01)


@dataclass
class Place:
    """An agent, the server of its model, and that of the model it falls back to."""

    agent: Agent
    server: ScriptServer
    spare: ScriptServer

    async def ask(self, name: str, *, agent: str = "alone", **request: Any) -> RunResult:
        """Runs a turn in the session of its own that a case has."""
        return await self.agent.ask(name, session_key=_key(name, agent), **request)

    def asked(self, name: str) -> int:
        """How often the model was asked before the turn that goes well."""
        return sum(it.asked.said == name for it in self.server.requests)

    async def history(self, name: str, agent: str = "alone") -> History:
        return await self.agent.history(_key(name, agent))

    async def answers(self, name: str) -> list[ToolMessage]:
        history = await self.history(name)
        return [it for it in history.messages() if isinstance(it, ToolMessage)]


def _key(name: str, agent: str) -> str:
    return f"agent:{agent}:{re.sub('[^a-z0-9]+', '-', name.lower())}"


@asynccontextmanager
async def place(
    state: Path,
    api: str,
    bad: Mapping[str, Bad],
    *,
    code_mode: bool = True,
    timeout_seconds: int | None = None,
    port: int | None = None,
) -> AsyncIterator[Place]:
    """An agent whose model is bad, in the way that it is asked for, until it hears "again".

    The agent `alone` has no other model, and `two` has.
    """

    def react(request: ScriptRequest) -> Any:
        # Some APIs join what was said in a row.
        if request.said.endswith(AGAIN):
            return "fine"
        found = bad[request.said]
        return found(request) if callable(found) else found

    async with ScriptServer(react, key=KEY) as server, ScriptServer(_spare) as spare:
        entry: dict[str, Any] = {"api": api, "apiKey": KEY, "local": False}
        if timeout_seconds is not None:
            entry["timeoutSeconds"] = timeout_seconds
        path = "" if api == "anthropic-messages" else "/v1"
        providers = {
            "wire": {
                **entry,
                "baseUrl": (f"http://127.0.0.1:{port}" if port else server.url) + path,
            },
            "spare": {**entry, "baseUrl": spare.url + path},
        }
        two = {"primary": "wire/a", "fallbacks": ["spare/b"]}
        configuration = configured(
            agents={
                "defaults": {"model": "wire/a"},
                "list": [{"id": "alone"}, {"id": "two", "model": two}],
            },
            models={"providers": providers},
            tools={"codeMode": code_mode},
        )
        async with ModelPool(configuration) as models:
            runtime = AgentRuntime(
                resolver=ConfigResolver(configuration, models, state),
                sessions=SessionStore(state / "sessions"),
                state=state,
                tools=[double],
            )
            async with runtime:
                agent = Agent(runtime)
                runtime.subscribe(agent.events.append)
                yield Place(agent, server, spare)


def _spare(request: ScriptRequest) -> Turn:
    return Turn("said by the spare one")


async def ends_well(
    found: Place, name: str, first: RunResult, agent: str = "alone", *, again: bool = True
) -> None:
    """Everything of the turn was closed, nothing was given away, and the next one works."""
    results = [first]
    if again:
        key = _key(name, agent)
        results.append(await found.agent.ask(AGAIN, session_key=key))
        assert (results[1].status, results[1].error) == ("ok", None), name
        assert reply(results[1]) in ("fine", "said by the spare one")
    history = await found.history(name, agent)
    assert (history.problems, history.open_runs()) == ([], {})
    ends = [it.data["status"] for it in history.entries if it.data.get("phase") == "end"]
    assert ends == [it.status for it in results], name
    for result in results:
        events = [it for it in found.agent.events if it.run_id == result.run_id]
        assert [it.seq for it in events] == list(range(1, len(events) + 1)), name
        phases = [it.data["phase"] for it in events if it.stream == "lifecycle"]
        assert phases == ["start", "end" if result.status == "ok" else "error"], name
        assert events[-1].stream == "lifecycle"
        told = json.dumps([result.to_json(), *(dict(it.data) for it in events)])
        assert KEY not in told, name
        error = result.error or ""
        assert len(error) < 1_000, name
        assert "Traceback" not in error, name
        assert 'File "' not in error, name
    session = await found.agent.runtime.sessions.resolve(_key(name, agent))
    for path in session.transcript.parent.glob(f"{session.id}*"):
        assert KEY.encode() not in path.read_bytes(), (name, path.name)


# ---- No answer, or none that makes sense ----

RETRIED = 3


@dataclass(frozen=True)
class Fails:
    """What a model does instead of answering, what that is called, and how often it is tried."""

    bad: Turn
    problem: Problem
    tries: int = RETRIED


def served(kind: Any, status: int | None = None, wait: float | None = None) -> Turn:
    return Turn(error=ModelError(kind, f"no: {kind}", status=status, retry_after=wait))


QUOTED = json.dumps({"error": {"message": f"the key {KEY} is wrong"}}).encode()
PAGE = b"<html><h1>Internal Server Error</h1>" + b"<p>sorry</p>" * 9_999

FAILURES: dict[str, Fails] = {
    "nonsense": Fails(Turn(error="garbage"), "garbage"),
    "nonsense in the middle": Fails(Turn("so far", error="garbage"), "garbage"),
    "the line is cut": Fails(Turn(error="connection"), "connection"),
    "the line is cut in the middle": Fails(Turn("so far", error="connection"), "connection"),
    "random bytes": Fails(Turn(raw=Raw(body=os.urandom(9999), headers=EVENTS)), "garbage"),
    "no bytes": Fails(Turn(raw=Raw(headers=EVENTS)), "garbage"),
    "a page of a proxy": Fails(
        Turn(raw=Raw(body=b"<html>hello</html>", headers={"content-type": "text/html"})), "garbage"
    ),
    "a list": Fails(Turn(raw=Raw(body=b"data: [1, 2]\n\n", headers=EVENTS)), "garbage"),
    "deep": Fails(Turn(raw=Raw(body=b"data: " + b"[" * 99_999, headers=EVENTS)), "garbage"),
    "429": Fails(served("rate_limit"), "rate_limit"),
    "429, come again": Fails(served("rate_limit", wait=0.05), "rate_limit"),
    "429, come again tomorrow": Fails(served("rate_limit", wait=86400), "rate_limit", 1),
    "429, soon or never": Fails(
        Turn(raw=Raw(status=429, headers={"retry-after": "nan"})), "rate_limit"
    ),
    "500": Fails(served("server"), "server"),
    "500 with a page": Fails(
        Turn(raw=Raw(status=500, body=PAGE, headers={"content-type": "text/html"})), "server"
    ),
    "503": Fails(Turn(raw=Raw(status=503)), "server"),
    "529": Fails(served("overloaded", status=529), "overloaded"),
    "500 in the middle": Fails(Turn("so far", error="server"), "server"),
    "401": Fails(served("auth"), "auth", 1),
    "401 with the key": Fails(
        Turn(raw=Raw(status=401, body=QUOTED, headers={"content-type": "application/json"})),
        "auth",
        1,
    ),
    "404": Fails(served("not_found"), "not_found", 1),
    "too long": Fails(served("context_overflow"), "context_overflow", 1),
    "no money": Fails(served("quota"), "quota", 1),
    "not allowed to say": Fails(served("refused"), "refused", 1),
    "400": Fails(served("invalid_request"), "invalid_request", 1),
}


@pytest.mark.parametrize("api", WIRES)
async def test_a_model_that_fails_ends_its_turn_and_no_other(tmp_path: Path, api: str) -> None:
    async with place(tmp_path, api, {name: it.bad for name, it in FAILURES.items()}) as found:
        for name, case in FAILURES.items():
            result = await found.ask(name)
            assert (result.status, result.problem) == ("error", case.problem), (name, result.error)
            assert reply(result) == ""
            assert "wire/a" in (result.error or ""), name
            assert found.asked(name) == case.tries, name
            await ends_well(found, name, result)
            # Of an answer that failed, nothing is told again.
            kinds = [type(it).__name__ for it in (await found.history(name)).messages()]
            assert kinds == ["UserMessage", "UserMessage", "AssistantMessage"], name


@pytest.mark.parametrize("api", WIRES)
async def test_another_model_takes_over_from_one_that_fails(tmp_path: Path, api: str) -> None:
    async with place(tmp_path, api, {name: it.bad for name, it in FAILURES.items()}) as found:
        for number, (name, case) in enumerate(FAILURES.items(), 1):
            result = await found.ask(name, agent="two")
            assert (result.status, result.error) == ("ok", None), name
            assert reply(result) == "said by the spare one"
            assert (result.metadata["provider"], result.metadata["model"]) == ("spare", "b")
            assert (found.asked(name), len(found.spare.requests)) == (case.tries, number), name
            await ends_well(found, name, result, "two", again=False)


# ---- Answers that lead nowhere ----


def results_of(request: ScriptRequest) -> list[str]:
    return [it for it in request.results.values() if it is not None]


def once(*parts: Any) -> Callable[[ScriptRequest], Turn]:
    """A bad message, and the end when its calls are answered."""
    return lambda request: Turn("done") if results_of(request) else Turn(*parts)


def over_and_over(request: ScriptRequest) -> Turn:
    return Turn("Again:", call("exec", {"code": "return 1"}))


ODD_NAMES = (
    "exec ",
    "Exec",
    "",
    "../../etc/passwd",
    "\x00\x1b[2J\u202e",
    "exec\n\nHuman: hello",
    "名前",
    "x" * 5_000,
    "{}",
)


@dataclass(frozen=True)
class Goes:
    """What a model does, how its turn ends, and what is in the answers to its calls."""

    bad: Bad
    answers: tuple[str, ...] = ()
    reply: str = "done"
    status: str = "ok"
    problem: Problem | None = None
    tries: int = 2


NO_TOOL = "There is no tool"
NOBODY = "cm_" + "0" * 32

GOES: dict[str, Goes] = {
    "calls a tool that is not there": Goes(once(call("shell", {"command": "id"})), (NO_TOOL,)),
    "calls a hidden tool": Goes(once(call("double", {"n": 1})), (f"{NO_TOOL} 'double'",)),
    "odd names": Goes(once(*(call(name, {}) for name in ODD_NAMES)), (NO_TOOL,) * len(ODD_NAMES)),
    "half of the arguments": Goes(once(call("exec", '{"code": "retu')), ("invalid_input",)),
    "arguments that are a list": Goes(once(call("exec", "[1]")), ("invalid_input",)),
    "arguments that are null": Goes(once(call("exec", "null")), ("invalid_input",)),
    "arguments of another kind": Goes(once(call("exec", {"code": [1]})), ("invalid_input",)),
    "no arguments": Goes(once(call("exec", "")), ("invalid_input",)),
    "deep arguments": Goes(
        once(call("exec", '{"code":' + "[" * 3_000 + "]" * 3_000 + "}")), ("invalid_input",)
    ),
    "waits for what nobody began": Goes(once(call("wait", {"runId": NOBODY})), ("invalid_input",)),
    "the same id twice": Goes(
        once(
            call("exec", {"code": "return 'one'"}, id="same"),
            call("exec", {"code": "return 'two'"}, id="same"),
        ),
        ('"one"', '"two"'),
    ),
    "an odd id": Goes(
        once(call("exec", {"code": "return 1"}, id="\u0000 \n" + "i" * 999)), ('"value":1',)
    ),
    "the same for ever": Goes(
        over_and_over, ('"value":1',) * 6, "Again:", "error", "repeats", tries=6
    ),
    "waits for ever for what nobody began": Goes(
        lambda request: Turn(call("wait", {"runId": NOBODY})),
        ("invalid_input",) * 6,
        "",
        "error",
        "repeats",
        tries=6,
    ),
    "says nothing": Goes(Turn(), (), "", tries=1),
    "says only space": Goes(Turn(" \n "), (), "", tries=1),
    "thinks only": Goes(Turn(think("hm")), (), "", tries=1),
    "hides its thoughts": Goes(Turn(think()), (), "", tries=1),
    "is cut off": Goes(Turn("as far as", stop="length"), (), "as far as", tries=1),
    "is cut off in a call": Goes(once(call("exec", '{"code": "return 1')), ("invalid_input",)),
}


@pytest.mark.parametrize("api", WIRES)
async def test_a_model_that_sends_an_invalid_call_gets_an_error_and_continues(
    tmp_path: Path, api: str
) -> None:
    async with place(tmp_path, api, {name: it.bad for name, it in GOES.items()}) as found:
        for name, case in GOES.items():
            result = await found.ask(name)
            assert (result.status, result.problem) == (case.status, case.problem), (name, result)
            assert reply(result).strip() == case.reply, name
            answers = await found.answers(name)
            assert len(answers) == len(case.answers), name
            for answer, part in zip(answers, case.answers, strict=True):
                assert part in answer.text, (name, answer.text[:500])
                assert len(answer.text) < 1_000, name
                assert "Traceback" not in answer.text
            assert found.asked(name) == case.tries, name
            await ends_well(found, name, result)


HALF = '{"code": "return \'\\ud800\'"}'


@pytest.mark.parametrize("api", WIRES)
async def test_half_a_character_does_not_spoil_the_session(tmp_path: Path, api: str) -> None:
    async with place(tmp_path, api, {"half": once(call("exec", HALF))}) as found:
        result = await found.ask("half")
        assert result.status == "ok"
        await ends_well(found, "half", result)


def complaints(body: dict[str, Any]) -> set[str]:
    """What the real providers would refuse a conversation for."""
    found: set[str] = set()
    for item in body.get("messages") or body["input"]:
        content = item.get("content")
        blocks = content if isinstance(content, list) else []
        if blocks and blocks[-1].get("type") in ("thinking", "redacted_thinking"):
            found.add("the last block is a thought")
        calls = [it.get("function", it) for it in item.get("tool_calls") or []]
        calls += [it for it in blocks if it.get("type") == "tool_use"]
        calls += [item] if item.get("type") == "function_call" else []
        if not all(re.fullmatch("[A-Za-z0-9_-]{1,64}", it["name"]) for it in calls):
            found.add("a tool has no such name")
    return found


@pytest.mark.parametrize("api", WIRES)
async def test_what_a_bad_model_said_is_told_again_as_providers_take_it(
    tmp_path: Path, api: str
) -> None:
    names = ["odd names", "thinks only"]
    async with place(tmp_path, api, {name: GOES[name].bad for name in names}) as found:
        for name in names:
            await ends_well(found, name, await found.ask(name))
        said = [complaints(request.body) for request in found.server.requests]
    assert set[str]().union(*said) == set()


# ---- Too much ----


@pytest.mark.parametrize("api", WIRES)
async def test_an_answer_without_an_end_is_cut_off(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "PIECE", MB // 2)
    floods = {"words": Turn("x" * 50 * MB), "thoughts": Turn(think("x" * 50 * MB))}
    async with place(tmp_path, api, floods) as found:
        for name in floods:
            result = await found.ask(name)
            assert (result.status, result.problem) == ("error", "garbage"), result.error
            assert f"more than {MAX_ANSWER_CHARS} characters" in (result.error or "")
            events = [it for it in found.agent.events if it.run_id == result.run_id]
            heard = sum(len(str(it.data.get("delta", ""))) for it in events)
            assert heard <= RETRIED * (MAX_ANSWER_CHARS + MB)
            with anyio.fail_after(5):
                for request in found.server.requests[-RETRIED:]:
                    await request.hung_up.wait()
            await ends_well(found, name, result)
            del events
            found.agent.events.clear()


@pytest.mark.parametrize("api", WIRES)
async def test_a_huge_call_is_answered_and_one_without_an_end_cut_off(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "PIECE", MB // 2)
    sizes = {"huge": 3 * MB, "without an end": 10 * MB}
    bad: dict[str, Bad] = {
        name: once(call("exec", {"code": "return 1 //" + "x" * size}))
        for name, size in sizes.items()
    }
    # More than a line of the transcript can hold, for each of these is six characters there.
    bad["too large to be kept"] = Turn("\x01" * 3 * MB)
    async with place(tmp_path, api, bad) as found:
        results = {name: await found.ask(name) for name in bad}
        assert [it.status for it in results.values()] == ["ok", "error", "error"]
        (answer,) = await found.answers("huge")
        assert '"code":"invalid_input"' in answer.text
        assert len(answer.text) < 1_000
        told = [dict(it.data) for it in found.agent.events if it.run_id == results["huge"].run_id]
        assert len(json.dumps(told)) < 100_000
        assert results["without an end"].problem == "garbage"
        assert "bytes" in (results["too large to be kept"].error or "")
        for name, result in results.items():
            await ends_well(found, name, result)


@pytest.mark.parametrize("code_mode", [True, False])
@pytest.mark.parametrize("api", WIRES)
async def test_hundreds_of_calls_in_one_message_are_all_answered_in_order(
    tmp_path: Path, api: str, code_mode: bool
) -> None:
    count = 200

    def many(request: ScriptRequest) -> Turn:
        if results_of(request):
            return Turn("done")
        if not code_mode:
            return Turn(*(call("double", {"n": n}) for n in range(count)))
        source = "return tools.double({ n: %d })"
        return Turn(*(call("exec", {"code": source % n}) for n in range(count)))

    async with place(tmp_path, api, {"many": many}, code_mode=code_mode) as found:
        result = await found.ask("many")
        assert (result.status, result.metadata["toolCalls"]) == ("ok", count), result.error
        answers = await found.answers("many")
        if code_mode:
            assert [json.loads(it.text)["value"] for it in answers] == [2 * n for n in range(count)]
        else:
            assert [it.text for it in answers] == [str(2 * n) for n in range(count)]
        await ends_well(found, "many", result)


# ---- Silence ----


async def ask_all(found: Place, *names: str) -> dict[str, RunResult]:
    """Turns of different sessions at once, for their silences take time."""
    results: dict[str, RunResult] = {}

    async def ask(name: str) -> None:
        results[name] = await found.ask(name)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask, name)
    return results


@pytest.mark.covers("AL-76", "AL-83")
@pytest.mark.parametrize("api", WIRES)
async def test_a_model_that_falls_silent_is_given_up(tmp_path: Path, api: str) -> None:
    silent = {
        "before the headers": Turn(error="timeout"),
        "after the headers": Turn(pause(60), "never"),
        "in the middle of a word": Turn("so f", error="timeout"),
        "in the middle of a thought": Turn(think("hm"), error="timeout"),
        "in the middle of a call": Turn(call("exec", '{"code": "'), error="timeout"),
    }
    async with place(tmp_path, api, silent, timeout_seconds=1) as found:
        began, undisturbed = time.monotonic(), undisturbed_time()
        results = await ask_all(found, *silent)
        assert time.monotonic() - began >= 3
        assert undisturbed_time() - undisturbed < 10
        for name, result in results.items():
            assert (result.status, result.problem) == ("error", "timeout"), (name, result.error)
            assert found.asked(name) == RETRIED
            await ends_well(found, name, result)
        with anyio.fail_after(5):
            for request in found.server.requests:
                if not request.asked.said.endswith(AGAIN):
                    await request.hung_up.wait()


@pytest.mark.covers("AL-83")
@pytest.mark.parametrize("api", WIRES)
async def test_a_server_that_takes_no_connection_is_given_up(tmp_path: Path, api: str) -> None:
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filling in (first, second):
            filling.setblocking(False)
            filling.connect_ex(deaf.getsockname())
        async with place(tmp_path, api, {}, timeout_seconds=1, port=deaf.getsockname()[1]) as found:
            began, undisturbed = time.monotonic(), undisturbed_time()
            results: dict[str, RunResult] = {}

            async def ask(agent: str) -> None:
                results[agent] = await found.ask("hello", agent=agent)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "alone")
                tasks.start_soon(ask, "two")
            assert time.monotonic() - began >= 3
            assert undisturbed_time() - undisturbed < 10
            result = results["alone"]
            assert (result.status, result.problem) == ("error", "timeout"), result.error
            assert reply(results["two"]) == "said by the spare one"


SILENCE = 3
"""Seconds: more than this process may wait for a core, and less than the slow answers take."""


@pytest.mark.parametrize("api", WIRES)
async def test_slow_words_and_thoughts_are_no_silence(tmp_path: Path, api: str) -> None:
    slow = {
        "words": Turn("w" * 400, delay=0.1),
        "thoughts": Turn(think("t" * 400), "done", delay=0.1),
    }
    async with place(tmp_path, api, slow, timeout_seconds=SILENCE) as found:
        for name, result in (await ask_all(found, *slow)).items():
            assert (result.status, result.error) == ("ok", None), name
            assert found.asked(name) == 1


@pytest.mark.parametrize("api", WIRES)
async def test_a_call_that_is_written_slowly_is_no_silence(tmp_path: Path, api: str) -> None:
    source = "return " + " " * 170 + "1"

    def react(request: ScriptRequest) -> Turn:
        done = results_of(request)
        return Turn("done") if done else Turn(call("exec", {"code": source}), delay=0.2)

    async with place(tmp_path, api, {"slowly": react}, timeout_seconds=SILENCE) as found:
        result = await found.ask("slowly")
        assert (result.status, result.error) == ("ok", None)
        assert found.asked("slowly") == 2


# ---- What is not the model's own ----


@pytest.mark.parametrize("api", WIRES)
async def test_a_program_of_another_run_or_session_cannot_be_waited_for(
    tmp_path: Path, api: str
) -> None:
    parked: list[str] = []
    gate = anyio.Event()

    def park(request: ScriptRequest) -> Turn:
        if not results_of(request):
            return Turn(call("exec", {"code": "await yield_control(); return 'mine'"}))
        found = request.last_result()
        if found["status"] == "completed":
            return Turn(f"got {found['value']}")
        parked.append(found["runId"])
        return Turn(pause(gate), call("wait", {"runId": found["runId"]}))

    def steal(request: ScriptRequest) -> Turn:
        found = results_of(request)
        return Turn("no luck") if found else Turn(call("wait", {"runId": parked[0]}))

    async with place(tmp_path, api, {"park": park, "steal": steal}) as found:
        request = AgentRequest(message="park", session_key="agent:alone:park")
        owner = await found.agent.runtime.start(request)
        await until(lambda: parked)
        result = await found.ask("steal")
        (answer,) = await found.answers("steal")
        assert '"code":"invalid_input"' in answer.text
        assert "mine" not in answer.text
        await ends_well(found, "steal", result)
        gate.set()
        with anyio.fail_after(10):
            result = await found.agent.runtime.result(owner.id)
        assert reply(result) == "got mine"
        await ends_well(found, "park", result)
