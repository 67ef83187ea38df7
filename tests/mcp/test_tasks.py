"""Tasks of servers: calls that a server continues in the background, and that are polled."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.mcp.test_real import node
from tests.support.mcp_driver import call, connected, context, find, raw

from clawmode.mcp.requests import McpError
from clawmode.mcp.servers import McpServers
from clawmode.tools.tool import InputRequest
from clawmode.types import JsonObject, JsonValue

pytestmark = pytest.mark.anyio

WORKING, DONE = {"status": "working"}, {"status": "completed"}


async def run(servers: McpServers, *steps: Any, **more: Any) -> Any:
    given = {"steps": list(steps), "first": more.pop("first", {})}
    return (await call(servers, "raw:starts_a_task", given, **more))["structuredContent"]


@pytest.mark.covers("M-22")
async def test_a_task_is_polled_until_it_has_a_result() -> None:
    updates: list[JsonValue] = []
    talks = {"status": "working", "statusMessage": "half of it"}
    async with connected({"raw": raw("modern")}) as servers:
        result = await run(servers, WORKING, talks, talks, DONE, update=updates.append)
    assert result == {"given": None, "polls": 4}
    assert updates == [{"status": "working", "message": "half of it"}]


@pytest.mark.covers("M-22")
async def test_a_question_of_a_task_is_asked_once() -> None:
    asked: list[str] = []

    async def ask(request: InputRequest) -> JsonObject:
        asked.append(request.message)
        return {"name": "Ann"}

    params = {
        "mode": "form",
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {}},
    }
    question = {"who": {"method": "elicitation/create", "params": params}}
    needs = {"status": "input_required", "inputRequests": question}
    async with connected({"raw": raw("modern")}, asks=True) as servers:
        result = await run(servers, needs, needs, WORKING, DONE, ask=ask)
    assert asked == ["Who?"]
    assert result["given"] == {"who": {"action": "accept", "content": {"name": "Ann"}}}


@pytest.mark.covers("M-22")
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"status": "failed", "error": {"code": -32050, "message": "no quota"}}, "no quota"),
        ({"status": "failed", "statusMessage": "broke"}, "broke"),
        ({"status": "cancelled"}, "the task is cancelled"),
        ({"status": "completed", "result": None}, "the task is completed"),
    ],
)
async def test_a_task_without_a_result_is_a_failed_call(end: Any, said: str) -> None:
    async with connected({"raw": raw("modern")}) as servers:
        with pytest.raises(McpError, match=said) as caught:
            await run(servers, WORKING, end)
    assert caught.value.kind == "refused"


async def test_a_task_outlives_the_time_limit_of_a_call() -> None:
    async with connected({"raw": raw("modern", timeoutMs=1_500)}) as servers:
        steps = [{**WORKING, "pollIntervalMs": 400}] * 5  # 2 s in total, but no poll takes 1.5
        assert (await run(servers, *steps, DONE))["polls"] == 6


@pytest.mark.covers("M-22")
async def test_a_cancelled_call_cancels_its_task() -> None:
    async def heard() -> list[str]:
        return (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]

    async with connected({"raw": raw("modern")}) as servers:
        execute: Any = find(servers, "raw:starts_a_task").execute
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(execute, {"steps": [WORKING]}, context())
            while "tasks/get" not in await heard():
                pass
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(10):
            while "tasks/cancel" not in await heard():
                pass
        assert "tasks/cancel" in await heard()


@pytest.mark.hostile
@pytest.mark.parametrize(
    "first",
    [
        {"taskId": 7},
        {"status": None},
        {"pollIntervalMs": "soon"},
        {"pollIntervalMs": -1e9},
        {"ttlMs": 1e300, "pollIntervalMs": 0},
    ],
)
async def test_an_odd_task_fails_its_call_or_works_and_harms_no_other(first: Any) -> None:
    async with connected({"raw": raw("modern")}) as servers:
        works = (
            "taskId" not in first and "status" not in first and first != {"pollIntervalMs": "soon"}
        )
        if works:
            assert (await run(servers, DONE, first=first))["polls"] == 1
        else:
            with pytest.raises(McpError) as caught:
                await run(servers, DONE, first=first)
            assert caught.value.kind == "protocol"
        for state in (
            {"ttlMs": 1},
            {"status": 5},
            {"status": "input_required", "inputRequests": 3},
        ):
            with pytest.raises(McpError):
                await run(servers, state)
        assert (await run(servers, DONE))["polls"] == 1


@pytest.mark.covers("M-22")
async def test_a_tool_that_requires_a_task_works_with_server_everything(node_servers: Path) -> None:
    asked: list[str] = []
    updates: list[Any] = []

    async def ask(request: InputRequest) -> JsonObject:
        asked.append(request.message)
        return {"interpretation": "snake"}

    entries = {"every": node(node_servers, "server-everything")}
    async with connected(entries, asks=True) as servers:
        given: Any = {"topic": "python", "ambiguous": True}
        tool = "every:simulate-research-query"
        done = await call(servers, tool, given, ask=ask, update=updates.append, limit=30)
    assert len(asked) == 1
    assert "python (snake)" in json.dumps(done)
    assert "Gathering sources..." in [update["message"] for update in updates]
