"""The Tasks extension of `clawmode mcp`: a program that waits is a task, for clients that poll."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from tests.support.face_driver import (
    TOOLS,
    connected,
    inside,
    new_token,
    read,
    served,
    stdio,
)
from tests.support.waiting import until

from clawmode.mcp.face_tasks import EXTENSION

pytestmark = pytest.mark.anyio

GATE = {"code": 'text("begun"); return tools.gate()'}
WRITE = {"code": 'return tools.write({ text: "x" })'}


class Created(types.Result):
    """A task, as the server returns it."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int
    created_at: str


class AboutTask(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class AskTask(types.Request[AboutTask, str]):
    method: str
    params: AboutTask
    name_param = "taskId"


class State(types.Result):
    """The answer to `tasks/get`."""

    status: str = ""
    input_requests: dict[str, Any] | None = None
    result: types.CallToolResult | None = None
    result_type: str = ""


async def ask(session: Any, method: str, task_id: str, **more: Any) -> State:
    params = AboutTask(task_id=task_id, **more)
    return await session.send_request(AskTask(method=method, params=params), State)


class Tasks(ClientExtension):
    """A client that polls its tasks, and answers their questions."""

    identifier = EXTENSION

    def __init__(self, decision: str = "allow-once") -> None:
        self.decision = decision
        self.created: list[Created] = []
        self.seen: list[str] = []
        self.on_create = anyio.Event()

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self.resolve)]

    async def resolve(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        self.created.append(created)
        self.on_create.set()
        results: list[types.CallToolResult] = []

        async def has_ended() -> bool:
            state = await ask(context.session, "tasks/get", created.task_id)
            self.seen.append(state.status)
            if state.result is not None:
                results.append(state.result)
                return True
            assert state.status in ("working", "input_required"), state
            answer = {"action": "accept", "content": {"decision": self.decision}}
            if answers := dict.fromkeys(state.input_requests or {}, answer):
                await ask(context.session, "tasks/update", created.task_id, input_responses=answers)
            return False

        await until(has_ended)
        return results[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS)
    return tmp_path


async def unasked(context: Any, params: Any) -> types.ElicitResult:
    raise AssertionError(f"nobody is asked here: {params}")


@pytest.mark.covers("MF-8")
async def test_a_program_that_waits_is_a_task_whose_result_comes_without_wait(
    folder: Path,
) -> None:
    tasks = Tasks()
    async with stdio(folder, "--timeout-ms", "3000", extensions=[tasks]) as client:
        assert EXTENSION in (client.server_capabilities.extensions or {})
        results: list[types.CallToolResult] = []

        async def run() -> None:
            results.append(await client.call_tool("exec", GATE))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await tasks.on_create.wait()
                (folder / "gate-is-open").touch()
        # A program that does not wait is no task.
        assert read(await client.call_tool("exec", {"code": "return 2"}))["value"] == 2
    told = read(results[0])
    assert (told["value"], told["output"]) == ("open", "begun")
    (created,) = tasks.created
    assert created.task_id.startswith("cm_")
    assert created.ttl_ms > 60_000


@pytest.mark.covers("MF-8")
async def test_the_questions_of_a_task_are_answered_by_update() -> None:
    for decision, value in (("allow-once", "wrote x"), ("deny", None)):
        tasks = Tasks(decision)
        async with inside(extensions=[tasks], elicitation_callback=unasked) as client:
            with anyio.fail_after(15):
                told = read(await client.call_tool("exec", WRITE))
        assert told.get("value") == value
        assert "input_required" in tasks.seen


class RawState(types.Result):
    """The answer to `tasks/get`, with the result as it was sent."""

    result: dict[str, Any] | None = None


@pytest.mark.covers("MF-8")
async def test_the_result_of_a_task_has_no_nulls() -> None:
    """The schemas of TypeScript clients reject null where a member is optional."""
    about = AskTask(method="tasks/get", params=AboutTask(task_id=""))
    async with inside(extensions=[Tasks()]) as client:
        async with open_task(client, WRITE) as about.params.task_id:
            results: list[dict[str, Any]] = []

            async def has_ended() -> bool:
                state = await client.session.send_request(about, RawState)
                results.append(state.result or {})
                return state.result is not None

            await until(has_ended)
    assert None not in [*results[-1].values(), *results[-1]["content"][0].values()]


@pytest.mark.covers("MF-8", "MF-2")
async def test_a_task_of_a_client_that_cannot_ask_says_so() -> None:
    async with inside(extensions=[Tasks()]) as client:
        with anyio.fail_after(15):
            told = read(await client.call_tool("exec", WRITE))
    assert told["code"] == "nested_tool_failed"
    assert "--approve always" in told["error"]


@asynccontextmanager
async def open_task(client: Client, given: Any) -> AsyncIterator[str]:
    """A task of a client that does not poll."""
    made = await client.session.call_tool("exec", given, allow_claimed=True)
    assert isinstance(made, Created)
    yield made.task_id


@pytest.mark.covers("MF-8")
async def test_a_cancelled_task_ends_its_program() -> None:
    async with inside(extensions=[Tasks()], elicitation_callback=unasked) as client:
        async with open_task(client, WRITE) as task_id:
            assert (await ask(client.session, "tasks/cancel", task_id)).result_type == "complete"
            assert (await ask(client.session, "tasks/get", task_id)).status == "cancelled"
            told = read(await client.call_tool("wait", {"runId": task_id}))
            assert told["code"] in ("aborted", "invalid_input")
            await ask(client.session, "tasks/cancel", task_id)


@pytest.mark.hostile
@pytest.mark.covers("MF-8", "MF-6")
async def test_a_task_belongs_to_its_token_and_survives_its_process(folder: Path) -> None:
    a, b = new_token(folder, "a"), new_token(folder, "b")
    options: dict[str, Any] = {"elicitation_callback": unasked}
    async with served(folder) as url:
        async with connected(url, a, extensions=[Tasks()], **options) as of_a:
            async with open_task(of_a, WRITE) as task_id:
                (key,) = (await ask(of_a.session, "tasks/get", task_id)).input_requests or {}
        accepted = {"action": "accept", "content": {"decision": "allow-always"}}
        async with connected(url, b, extensions=[Tasks()], **options) as of_b:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError) as caught:
                    await ask(of_b.session, method, task_id, input_responses={key: accepted})
                assert caught.value.code == types.INVALID_PARAMS
    async with served(folder) as url:
        async with connected(url, a, extensions=[Tasks()], **options) as again:
            with anyio.fail_after(15):
                state = await ask(again.session, "tasks/get", task_id)
                while key not in (state.input_requests or {}):
                    state = await ask(again.session, "tasks/get", task_id)
                wrong: dict[str, Any] = {"x": accepted, key: "nonsense", f"{key}0": accepted}
                await ask(again.session, "tasks/update", task_id, input_responses=wrong)
                state = await ask(again.session, "tasks/get", task_id)
                assert state.status == "input_required"
                await ask(again.session, "tasks/update", task_id, input_responses={key: accepted})
                while state.result is None:
                    state = await ask(again.session, "tasks/get", task_id)
    assert read(state.result)["value"] == "wrote x"


@pytest.mark.hostile
@pytest.mark.covers("MF-8")
async def test_a_client_that_does_not_declare_tasks_gets_none() -> None:
    async with inside(elicitation_callback=unasked) as client:
        asked = await client.session.call_tool("exec", WRITE, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError) as caught:
                await ask(client.session, method, asked.request_state or "", input_responses={})
            assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
    async with inside(mode="legacy", elicitation_callback=unasked) as client:
        with pytest.raises(MCPError):
            await ask(client.session, "tasks/get", "cm_" + "0" * 32)
