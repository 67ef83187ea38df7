"""SF-7: what leaves names the tools of code mode and nothing else, or does not leave."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest
from tests.support.model_driver import BOTH, EXEC, WAIT, answer_of, played, request

from clawmode.messages import UserMessage
from clawmode.models.base import FINAL, ModelError, ToolDefinition
from clawmode.models.providers import APIS, Api, KeySource, make_model
from clawmode.models.wire import check_tools
from clawmode.testing import ScriptServer, Turn

every_api = pytest.mark.parametrize("api", APIS)

Body = dict[str, Any]


def holder(tool: Body) -> Body:
    """Where the name of a tool is, in each of the three shapes."""
    return tool.get("function", tool)


def add(body: Body) -> None:
    extra = json.loads(json.dumps(body["tools"][0]))
    holder(extra)["name"] = "shell"
    body["tools"].append(extra)


def add_by_the_provider(body: Body) -> None:
    body["tools"].append({"type": "web_search"})


def rename(body: Body) -> None:
    holder(body["tools"][1])["name"] = "Wait"


def leave_out(body: Body) -> None:
    del body["tools"][0]


def leave_out_all(body: Body) -> None:
    del body["tools"]


def double(body: Body) -> None:
    body["tools"].append(body["tools"][0])


def unname(body: Body) -> None:
    del holder(body["tools"][0])["name"]


def blank(body: Body) -> None:
    holder(body["tools"][0])["name"] = ""


def two_names(body: Body) -> None:
    tool = body["tools"][0]
    tool["name"], tool["function"] = "exec", {"name": "shell"}


def no_list(body: Body) -> None:
    body["tools"] = {"exec": body["tools"][0], "wait": body["tools"][1]}


def no_objects(body: Body) -> None:
    body["tools"] = ["exec", "wait"]


def beside(body: Body) -> None:
    body["functions"] = [{"name": "shell"}]


def servers_beside(body: Body) -> None:
    body["mcp_servers"] = [{"type": "url", "url": "https://example.com", "name": "x"}]


MUTATIONS = [
    add,
    add_by_the_provider,
    rename,
    leave_out,
    leave_out_all,
    double,
    unname,
    blank,
    two_names,
    no_list,
    no_objects,
    beside,
    servers_beside,
]


def mutated(model: Any, change: Callable[[httpx2.Request], None]) -> None:
    """Somebody above the wire changes the request, after the library has made it."""
    client = model._provider._http
    hooks = client.event_hooks

    async def meddle(sent: httpx2.Request) -> None:
        change(sent)

    client.event_hooks = {**hooks, "request": [meddle, *hooks["request"]]}


def replaced(sent: httpx2.Request, data: bytes) -> None:
    # Not by `content`, which is left as it was: what counts is what is sent.
    sent.stream = httpx2.ByteStream(data)
    sent.headers["content-length"] = str(len(data))


async def refused(model: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer_of(model, request(exact_tools=BOTH, **options))
    assert caught.value.kind == "payload_guard"
    assert caught.value.kind in FINAL
    return caught.value


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
async def test_a_request_with_exactly_the_two_tools_is_sent(api: Api) -> None:
    async with played(api, [Turn("Yes.")]) as (server, model):
        assert (await answer_of(model, request(exact_tools=BOTH))).text == "Yes."
        assert server.requests[0].asked.tool_names == ("exec", "wait")


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda it: it.__name__)
async def test_a_request_that_was_meddled_with_does_not_leave(
    api: Api, mutation: Callable[[Body], None]
) -> None:
    async with played(api, [Turn("Yes.")]) as (server, model):

        def change(sent: httpx2.Request) -> None:
            body = json.loads(sent.content)
            mutation(body)
            replaced(sent, json.dumps(body).encode())

        mutated(model, change)
        error = await refused(model)
        assert server.requests == []
    assert "exec, wait" in str(error)


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
async def test_the_error_says_what_was_found(api: Api) -> None:
    async with played(api, [Turn("Yes.")]) as (server, model):
        extra = ToolDefinition("shell", "Anything.", {"type": "object"})
        error = await refused(model, tools=(EXEC, WAIT, extra))
        assert server.requests == []
    assert "exactly exec, wait; found exec, wait, shell" in str(error)


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"tools": [{"name": "exec"}, {"name": "wait"}], "tools": [{"name": "shell"}]}',
        b'{"tools": [{"name": "shell"}], "tools": [{"name": "exec"}, {"name": "wait"}]}',
        b"[" * 100_000,
    ],
)
async def test_a_body_that_cannot_be_read_does_not_leave(api: Api, data: bytes) -> None:
    async with played(api, [Turn("Yes.")]) as (server, model):
        mutated(model, lambda sent: replaced(sent, data))
        await refused(model)
        assert server.requests == []


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
async def test_requests_without_the_surface_are_not_guarded(api: Api) -> None:
    """Summaries carry no tools by design, and runs without code mode carry their own."""
    shell = ToolDefinition("shell", "Anything.", {"type": "object"})
    async with played(api, [Turn("a"), Turn("b")]) as (server, model):
        await answer_of(model, request(tools=()))
        await answer_of(model, request(tools=(shell,)))
        assert [it.asked.tool_names for it in server.requests] == [(), ("shell",)]


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
@every_api
async def test_each_of_many_requests_at_once_is_judged_by_its_own(api: Api) -> None:
    outcomes: list[str] = []
    async with ScriptServer(lambda asked: Turn("ok", delay=0.001)) as server:
        async with make_model(server.settings(api), "scripted") as model:

            async def ask(number: int) -> None:
                guarded, right = number % 2 == 0, number % 4 == 0
                asked = request(
                    UserMessage.of(str(number)),
                    tools=(EXEC, WAIT) if right else (EXEC,),
                    exact_tools=BOTH if guarded else None,
                )
                try:
                    await answer_of(model, asked)
                    outcomes.append("sent")
                except ModelError as error:
                    outcomes.append(error.kind)

            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(ask, number)
        arrived = {it.asked.said for it in server.requests}
    assert sorted(outcomes) == ["payload_guard"] * 10 + ["sent"] * 30
    assert not {str(number) for number in range(2, 40, 4)} & arrived


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
async def test_a_request_that_nobody_announced_does_not_leave() -> None:
    async with played("openai-completions", [Turn("Yes.")]) as (server, model):
        with pytest.raises(ModelError) as caught:
            await model._provider._http.post(f"{server.url}/v1/chat/completions", json={})
        assert caught.value.kind == "payload_guard"
        assert server.requests == []


@pytest.mark.anyio
@pytest.mark.covers("SF-7")
async def test_a_request_made_again_with_a_new_key_is_looked_at_again(
    tmp_path: Any,
) -> None:
    """The second try passes the same hooks, so a body that changed in between is found."""
    path = tmp_path / "key"
    path.write_text("old-key", "ascii")
    path.chmod(0o600)
    async with ScriptServer([Turn("Yes.")], key="new-key") as server:
        settings = server.settings("openai-completions", key=KeySource(file=str(path)))
        async with make_model(settings, "scripted") as model:
            tries: list[int] = []

            def change(sent: httpx2.Request) -> None:
                tries.append(1)
                path.write_text("new-key", "ascii")
                if len(tries) == 2:
                    body = json.loads(sent.content)
                    add(body)
                    replaced(sent, json.dumps(body).encode())

            mutated(model, change)
            await refused(model)
        assert len(tries) == 2
        assert server.requests == []


@pytest.mark.covers("SF-7")
@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"name": "exec"}, {"name": "wait"}]},
        {"tools": [{"type": "function", "name": "wait"}, {"type": "function", "name": "exec"}]},
        {"tools": [{"type": "function", "function": {"name": it}} for it in ("exec", "wait")]},
        {"tools": [{"name": "exec"}, {"name": "wait"}], "functions": [], "input": "hello"},
    ],
)
def test_the_three_shapes_of_tools_are_known(body: Body) -> None:
    check_tools(json.dumps(body).encode(), BOTH)
    body["tools"].append({"name": "more"})
    with pytest.raises(ModelError):
        check_tools(json.dumps(body).encode(), BOTH)


@pytest.mark.covers("SF-7")
def test_tools_that_come_by_way_of_the_conversation_are_found() -> None:
    body = {
        "tools": [{"name": "exec"}, {"name": "wait"}],
        "input": [{"type": "additional_tools", "tools": [{"name": "shell"}]}],
    }
    with pytest.raises(ModelError, match="additional_tools"):
        check_tools(json.dumps(body).encode(), BOTH)
