"""The catalog of an agent as its model sees it, and programs that clients run against it."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import Inside, echo, events, inside
from tests.support.mcp_driver import HERE as MCP
from tests.support.waiting import Gate, until

from clawmode.gateway import lone_programs
from clawmode.tools.tool import Tool

pytestmark = pytest.mark.anyio

CODE_MODE = {"codeMode": True}


def weather() -> Tool:
    schema: Any = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Where."}},
        "required": ["city"],
    }
    return Tool("weather", "Tells the forecast.", schema, echo().execute, effect="read")


@asynccontextmanager
async def with_catalog(folder: Path, **options: Any) -> AsyncIterator[Inside]:
    given: dict[str, Any] = {"rules": {**CODE_MODE, "approve": "ask"}, **options}
    async with inside(folder, tools=[weather(), echo("send_mail")], **given) as it:
        yield it


# ---- What the model sees ----


@pytest.mark.covers("GP-14")
async def test_the_surface_is_what_the_model_gets(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        found = await it.call("tools.surface", it.client("operator.read"))
        assert (found["agentId"], found["codeMode"], found["next"]) == ("main", True, None)
        assert [each["name"] for each in found["visible"]] == ["exec", "wait"]
        assert "tools.weather(" in found["visible"][0]["description"]
        tools = {each["name"]: each for each in found["tools"]}
        assert found["total"] == len(found["tools"])
        assert tools["weather"]["signature"].startswith("tools.weather({")
        assert (tools["weather"]["asks"], tools["send_mail"]["asks"]) == (False, True)
        run = await it.call("agent", message="go")
        await it.call("agent.wait", runId=run["runId"])
        sent = {each.name: each.description for each in it.model.requests[0].tools}
        assert sent == {each["name"]: each["description"] for each in found["visible"]}


async def test_without_code_mode_the_model_sees_the_tools(tmp_path: Path) -> None:
    async with with_catalog(tmp_path, rules={}) as it:
        found = await it.call("tools.surface")
        assert found["codeMode"] is False
        assert "weather" in [each["name"] for each in found["visible"]]


@pytest.mark.covers("GP-14")
async def test_a_large_catalog_has_pages(tmp_path: Path) -> None:
    many = [echo(f"tool_{number}", effect="read") for number in range(300)]
    async with inside(tmp_path, tools=many, rules=CODE_MODE) as it:
        ids: list[str] = []
        after, page = 0, dict[str, Any]()
        while after is not None:
            page = await it.call("tools.surface", after=after, limit=100)
            ids += [each["id"] for each in page["tools"]]
            after = page["next"]
        assert len(ids) == len(set(ids)) == page["total"] >= 300


@pytest.mark.covers("GP-15")
async def test_a_search_uses_the_ranker_of_programs(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        reader = it.client("operator.read")
        found = await it.call("tools.search", reader, query="forecast of the weather")
        best = found["hits"][0]
        assert (best["name"], best["rank"]) == ("weather", 1)
        assert best["call"].startswith("tools.weather({")
        ran = await it.call(
            "codemode.run", code="return await tools.search('forecast of the weather')"
        )
        assert [hit["id"] for hit in ran["result"]["value"]] == [hit["id"] for hit in found["hits"]]
        nothing = await it.call("tools.search", reader, query="xyzzy")
        assert (nothing["hits"], nothing["unmatched"]) == ([], ["xyzzy"])
        assert (await it.call("tools.search", reader, query=""))["hits"] == []


@pytest.mark.covers("GP-14")
async def test_a_declaration_has_types_and_schemas(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        for reference in ("weather", weather().id):
            found = await it.call("tools.declaration", id=reference)
            assert found["id"].endswith(":weather")
            assert "city" in found["declaration"]
            assert found["parameters"]["required"] == ["city"]


@pytest.mark.covers("GP-14")
async def test_the_tools_of_mcp_servers_are_declared_in_files(tmp_path: Path) -> None:
    raw = ["-I", "-S", str(MCP / "raw_server.py"), "good"]
    server = {"command": sys.executable, "args": raw}
    async with with_catalog(tmp_path, mcp={"servers": {"raw": server}}) as it:
        await until(lambda: it.gateway.host.runtime.servers()[0].state == "ready")
        found = await it.call("tools.surface")
        assert found["files"] == ["mcp/index.d.ts", "mcp/raw.d.ts"]
        declared = await it.call("tools.declaration", file="mcp/raw.d.ts")
        tool = next(each for each in found["tools"] if each["source"] == "mcp")
        assert tool["signature"].startswith("MCP.raw.")
        alone = await it.call("tools.declaration", id=tool["id"])
        name = tool["signature"].partition("(")[0].rpartition(".")[2]
        assert name in alone["declaration"]
        assert name in declared["declaration"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "given", "code"),
    [
        ("declaration", {}, "INVALID_REQUEST id"),
        ("declaration", {"id": "a", "file": "b"}, "INVALID_REQUEST id"),
        ("declaration", {"id": "nobody"}, "NOT_FOUND id"),
        ("declaration", {"file": "../../etc/passwd"}, "NOT_FOUND file"),
        ("declaration", {"id": "x" * 100_000}, "INVALID_REQUEST id"),
        ("search", {}, "INVALID_REQUEST query"),
        ("search", {"query": "x" * 100_000}, "INVALID_REQUEST query"),
        ("search", {"query": "a", "limit": 1_000}, "INVALID_REQUEST limit"),
        ("search", {"query": "a", "agentId": "nobody"}, "INVALID_REQUEST agentId"),
        ("surface", {"agentId": "nobody"}, "INVALID_REQUEST agentId"),
        ("surface", {"sessionKey": "a b"}, "INVALID_REQUEST sessionKey"),
        ("surface", {"after": 10**9}, "INVALID_REQUEST after"),
        ("surface", {"limit": True}, "INVALID_REQUEST limit"),
    ],
)
async def test_wrong_parameters_are_refused(
    tmp_path: Path, name: str, given: dict[str, Any], code: str
) -> None:
    async with with_catalog(tmp_path) as it:
        assert await it.code(f"tools.{name}", **given) == code
        assert (await it.call("tools.search", query="a " * 2_000))["hits"] is not None


# ---- Programs of clients ----


@pytest.mark.covers("GP-16")
async def test_a_client_runs_a_program_and_sees_its_calls(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        watcher = it.client("operator.read")
        watcher.following.add("*")
        code = "text('hi'); return (await tools.weather({city: 'Rome'})).said"
        ran = await it.call("codemode.run", code=code, sessionKey="tea")
        assert ran["result"]["status"] == "completed"
        assert ran["result"]["value"] == {"city": "Rome"}
        assert ran["result"]["output"] == [{"type": "text", "text": "hi"}]
        program, nested = (await it.call("runs.tree", sessionKey="tea"))["nodes"]
        assert (program["kind"], program["state"]) == ("program", "completed")
        assert (program["runId"], program["parent"]) == (ran["nodeRunId"], None)
        assert (nested["title"], nested["parent"]) == ("weather", program["id"])
        phases = [each["phase"] for each in events(watcher, "session.tool")]
        assert phases == ["start", "end"]
        await until(lambda: not it.gateway.feed.lone.programs())
        typed = await it.call("codemode.run", code="return 1 as number", language="typescript")
        assert typed["result"]["value"] == 1
        failed = await it.call("codemode.run", code="return nonsense")
        assert failed["result"]["status"] == "failed"


@pytest.mark.covers("GP-16")
async def test_a_program_of_a_client_waits_for_approval_like_any_other(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        code = "return (await tools.send_mail({to: 'you'})).said"
        ran = await it.call("codemode.run", code=code, timeoutMs=200)
        assert (ran["result"]["status"], ran["result"]["reason"]) == ("waiting", "pending_tools")
        cell_id = ran["result"]["runId"]
        (asked,) = await until(partial(_pending, it))
        assert (asked["input"], asked["runId"]) == ({"to": "you"}, ran["nodeRunId"])
        program, nested = (await it.call("runs.tree"))["nodes"]
        assert (program["state"], program["waitsFor"]) == ("parked", "approval")
        assert (nested["state"], nested["questionId"]) == ("waiting", asked["id"])
        (listed,) = (await it.call("codemode.runs"))["cells"]
        assert listed["cellId"] == cell_id
        again = await it.call("codemode.wait", runId=cell_id, timeoutMs=100)
        assert again["result"]["status"] == "waiting"
        await it.call("plugin.approval.resolve", id=asked["id"], decision="allow-once")
        done = await it.call("codemode.wait", runId=cell_id)
        assert done["result"]["value"] == {"to": "you"}
        assert await it.code("codemode.wait", runId=cell_id) == "NOT_FOUND runId"
        await until(lambda: not it.gateway.feed.lone.programs())


async def _pending(it: Inside) -> list[dict[str, Any]]:
    return (await it.call("plugin.approval.list"))["approvals"]


async def test_a_denied_tool_is_denied_for_clients_too(tmp_path: Path) -> None:
    rules = {**CODE_MODE, "deny": ["weather"]}
    async with with_catalog(tmp_path, rules=rules) as it:
        ran = await it.call("codemode.run", code="return await tools.weather({city: 'x'})")
        assert ran["result"]["status"] == "failed"
        assert await it.code("tools.declaration", id="weather") == "NOT_FOUND id"


async def test_a_program_that_waits_can_be_aborted(tmp_path: Path) -> None:
    gate = Gate(effect="read")
    async with inside(tmp_path, tools=[gate.tool], rules=CODE_MODE) as it:
        ran = await it.call("codemode.run", code="return await tools.slow({})", timeoutMs=100)
        cell_id = ran["result"]["runId"]
        assert await it.call("codemode.abort", cellId=cell_id) == {"aborted": 1}
        gone = await it.call("codemode.wait", runId=cell_id)
        assert (gone["result"]["status"], gone["result"]["code"]) == ("failed", "aborted")
        await until(lambda: not it.gateway.feed.lone.programs())
        (program, *_) = (await it.call("runs.tree"))["nodes"]
        assert program["state"] == "cancelled"


@pytest.mark.hostile
@pytest.mark.covers("GP-16")
async def test_programs_of_clients_are_few_and_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lone_programs, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(lone_programs, "LOOK_SECONDS", 0.01)
    gate = Gate(effect="read")
    async with inside(tmp_path, tools=[gate.tool], rules=CODE_MODE) as it:
        waiting = {"code": "return await tools.slow({})", "timeoutMs": 50}
        for _ in range(2):
            await it.call("codemode.run", **waiting)
        assert await it.code("codemode.run", **waiting) == "RATE_LIMITED"
        lone = it.gateway.feed.lone
        for each in lone._runs:
            each.until = 0.0
        await until(lambda: not lone.programs())
        assert (await it.call("codemode.runs"))["cells"] == []
        nodes = (await it.call("runs.tree"))["nodes"]
        assert {node["state"] for node in nodes} == {"cancelled"}


@pytest.mark.hostile
async def test_two_waits_for_one_program_are_no_trouble(tmp_path: Path) -> None:
    gate = Gate(effect="read")
    async with inside(tmp_path, tools=[gate.tool], rules=CODE_MODE) as it:
        ran = await it.call("codemode.run", code="return await tools.slow({})", timeoutMs=100)
        results: list[Any] = []

        async def wait() -> None:
            answer = await it.call("codemode.wait", runId=ran["result"]["runId"])
            results.append(answer["result"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await until(lambda: results)
            gate.open.set()
        assert sorted(each["status"] for each in results) == ["completed", "failed"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "INVALID_REQUEST code"),
        ({"code": ""}, "INVALID_REQUEST code"),
        ({"code": "x" * (300 << 10)}, "INVALID_REQUEST code"),
        ({"code": "1", "language": "python"}, "INVALID_REQUEST language"),
        ({"code": "1", "timeoutMs": 0}, "INVALID_REQUEST timeoutMs"),
        ({"code": "1", "timeoutMs": 10**9}, "INVALID_REQUEST timeoutMs"),
        ({"code": "1", "agentId": "nobody"}, "INVALID_REQUEST agentId"),
        ({"code": "1", "sessionKey": "a b"}, "INVALID_REQUEST sessionKey"),
    ],
)
async def test_what_is_no_program_is_refused(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    async with with_catalog(tmp_path) as it:
        assert await it.code("codemode.run", **given) == code
        assert await it.code("codemode.wait", runId="cm_x") == "NOT_FOUND runId"
        assert it.gateway.feed.lone._runs == []
        writer = it.client("operator.write")
        assert await it.code("codemode.run", writer, code="return 1") == "FORBIDDEN"


async def test_a_repeated_request_runs_the_program_once(tmp_path: Path) -> None:
    async with with_catalog(tmp_path) as it:
        given = {"code": "return Math.random()", "idempotencyKey": "k"}
        first = await it.call("codemode.run", **given)
        assert await it.call("codemode.run", **given) == first
        assert json.dumps(first).count("nodeRunId") == 1
