"""Servers that are started here: what they answer, and what they do instead of answering."""

import json
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.mcp_driver import call, connected, context, find, raw, view_of
from tests.support.waiting import idle, is_alive, until

from clawmode.app.loading import set_up
from clawmode.app.servers import log_file, open_servers
from clawmode.app.setup import Options
from clawmode.context import RunContext
from clawmode.mcp import requests, supervisor
from clawmode.mcp.requests import McpError
from clawmode.mcp.servers import McpServers
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.policy import Policy
from clawmode.tools.tool import InputRequest, ToolContext
from clawmode.types import JsonObject, JsonValue

pytestmark = pytest.mark.anyio


async def failure(servers: McpServers, tool: str, given: dict[str, Any] | None = None) -> McpError:
    with pytest.raises(McpError) as caught:
        await call(servers, tool, given)
    return caught.value


async def is_well(servers: McpServers, name: str = "raw") -> bool:
    return (await call(servers, f"{name}:what_was_heard"))["structuredContent"]["pid"] > 0


# ---- Answers ----


@pytest.mark.covers("MC-3")
async def test_defaults_are_filled_in_and_a_key_named_proto_is_one_like_any_other() -> None:
    executor = Executor(Policy.from_config(None), approvals=Approvals())

    async def received(given: JsonObject) -> Any:
        """The arguments that the server got for this input."""
        call = Call(id="1", tool=find(servers, "raw:echo"), input=given, run=RunContext())
        details: Any = (await executor.call(call)).details
        return details["structuredContent"]["got"]

    async with connected({"raw": raw()}) as servers:
        # `font` has the default null, which its own schema rejects: the server decides.
        assert await received({"need": "x", "b": {}}) == {
            "need": "x",
            "b": {},
            "a": 1,
            "__proto__": "own",
        }
        got = await received({"need": "x", "__proto__": "mine", "font": "Arial"})
        assert (got["__proto__"], got["font"], got["b"]) == ("mine", "Arial", {"c": [2]})


@pytest.mark.covers("MC-3")
async def test_what_is_required_and_missing_is_named_before_the_server_is_called() -> None:
    async with connected({"raw": raw()}) as servers:
        executor = Executor(Policy.from_config(None), approvals=Approvals())
        tool = find(servers, "raw:echo")
        with pytest.raises(ToolFailure, match="need") as caught:
            await executor.call(Call(id="1", tool=tool, input={}, run=RunContext()))
        assert caught.value.code == "invalid_tool_input"
        heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
        assert heard.count("tools/call") == 1
        # What has a default need not be given, required or not.
        await executor.call(Call(id="2", tool=tool, input={"need": "x"}, run=RunContext()))


@pytest.mark.covers("MC-4")
async def test_an_error_that_the_tool_answers_is_a_result() -> None:
    async with connected({"raw": raw()}) as servers:
        assert await call(servers, "raw:is_error") == {
            "content": [{"type": "text", "text": "no such file"}],
            "isError": True,
        }


@pytest.mark.covers("MC-4")
async def test_an_error_of_the_protocol_is_raised_in_plain_text() -> None:
    async with connected({"raw": raw()}) as servers:
        error = await failure(servers, "raw:rpc_error")
        assert error.kind == "refused"
        assert str(error) == (
            "MCP server 'raw' answered with error -32050: quota \\u001b[31mexceeded"
        )
        assert (await failure(servers, "raw:invalid")).kind == "protocol"
        assert await is_well(servers)


@pytest.mark.covers("MC-5")
async def test_resources_and_prompts_are_tools_where_the_server_has_them() -> None:
    async with connected({"raw": raw("everything"), "plain": raw()}) as servers:
        listed = await call(servers, "raw:resources/list")
        assert [each["uri"] for each in listed["resources"]] == ["memo://0", "memo://1", "memo://2"]
        page = await call(servers, "raw:resources/list", {"cursor": "1"})
        assert [each["uri"] for each in page["resources"]] == ["memo://1"]
        assert page["nextCursor"] == "2"
        read = await call(servers, "raw:resources/read", {"uri": "memo://one"})
        assert read == {"contents": [{"uri": "memo://one", "text": "one"}]}
        assert await call(servers, "raw:prompts/list") == {"prompts": [{"name": "brief"}]}
        got = await call(servers, "raw:prompts/get", {"name": "brief", "arguments": {"topic": "x"}})
        assert json.loads(got["messages"][0]["content"]["text"]) == {"topic": "x"}
        view = view_of(servers, "raw")
        assert [tool.name for tool in view.resources] == ["resources/list", "resources/read"]
        assert [tool.name for tool in view.prompts] == ["prompts/list", "prompts/get"]
        assert all(tool.effect == "read" for tool in (*view.resources, *view.prompts))
        assert view_of(servers, "plain").resources == ()


async def test_progress_reaches_who_watches_and_gives_the_call_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "UPDATES_PER_SECOND", math.inf)  # two may be read at once
    updates: list[JsonValue] = []
    async with connected({"raw": raw(timeoutMs=1_500)}) as servers:
        given = {"steps": 12, "pause": 0.2}  # 2.4 s in total, but no step takes 1.5
        await call(servers, "raw:progress", given, update=updates.append)
    assert updates == [
        {"progress": float(step), "total": 12.0, "message": f"step {step}"} for step in range(1, 13)
    ]


async def test_annotations_count_only_if_the_operator_trusts_them() -> None:
    async with connected({"raw": raw(), "trusted": raw(trustAnnotations=True)}) as servers:
        untrusted, trusted = find(servers, "raw:echo"), find(servers, "trusted:echo")
        assert (untrusted.effect, untrusted.idempotent) == (None, False)
        assert (trusted.effect, trusted.idempotent) == ("read", True)


async def test_a_server_gets_few_variables_and_what_was_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEBODYS_SECRET", "hunter2")
    entry = raw(env={"GIVEN": "yes"}, cwd=str(tmp_path))
    async with connected({"raw": entry}) as servers:
        seen = (await call(servers, "raw:environment"))["structuredContent"]
    assert seen["env"]["GIVEN"] == "yes"
    assert seen["env"]["PATH"] == os.environ["PATH"]
    assert "SOMEBODYS_SECRET" not in seen["env"]
    assert seen["cwd"] == str(tmp_path)


# ---- Lists ----


@pytest.mark.parametrize(("mode", "names"), [("pages", [f"tool{n}" for n in range(5)])])
async def test_all_pages_are_read(mode: str, names: list[str]) -> None:
    async with connected({"raw": raw(mode)}) as servers:
        view = view_of(servers, "raw")
        assert [tool.name for tool in view.tools] == names
        assert view.notes == ()
        assert view.instructions == "Be careful."


@pytest.mark.parametrize("mode", ["thousands", "one_page", "endless", "circle", "no_list"])
async def test_a_list_without_end_is_cut_and_said_so(mode: str) -> None:
    async with connected({"raw": raw(mode)}) as servers:
        view = view_of(servers, "raw")
        assert view.state == "ready"
        assert len(view.tools) == {"circle": 2, "no_list": 0}.get(mode, 1_000)
        assert view.notes
        if mode == "thousands":  # by name, whatever their order
            assert view.tools[0].name == "tool0000"
            assert view.tools[-1].name == "tool0999"


async def test_what_is_no_tool_is_left_out_and_the_rest_works() -> None:
    async with connected({"raw": raw("hostile")}) as servers:
        view = view_of(servers, "raw")
        assert [tool.name for tool in view.tools] == [
            *("__proto__", "constructor", "file_ref", "fine", "loop", "loud", "no_schema", "odd"),
            *("recursive", "untyped", "url_ref", "\U0001f600"),
        ]
        assert view.tools[3].description == "fine!"
        assert all(len(tool.description) <= 8_192 for tool in view.tools)
        assert len(view.notes) <= 21
        notes = " ".join(view.notes)
        for word in ("'fine' is listed twice", "resources/read", "file:///etc/passwd", "entry 8"):
            assert word in notes
        executor = Executor(Policy.from_config(None), approvals=Approvals())
        for name in ("file_ref", "url_ref"):
            call_ = Call(id="1", tool=find(servers, f"raw:{name}"), input={}, run=RunContext())
            with pytest.raises(ToolFailure) as caught:
                await executor.call(call_)
            assert caught.value.code == "invalid_tool_input"


@pytest.mark.covers("MC-9")
async def test_a_list_that_changes_is_read_again() -> None:
    changes: list[int] = []
    async with connected(
        {"raw": raw()}, on_change=lambda view: changes.append(len(view.tools))
    ) as servers:
        kept, gone = find(servers, "raw:echo"), find(servers, "raw:progress")
        await call(servers, "raw:change", {"names": ["echo", "fresh"]})
        await until(lambda: len(view_of(servers, "raw").tools) == 2)
        assert changes[-1] == 2
        assert [tool.name for tool in view_of(servers, "raw").tools] == ["echo", "fresh"]
        with pytest.raises(McpError) as caught:
            await gone.execute({}, context())  # pyrefly: ignore[not-async]
        assert caught.value.kind == "gone"
        assert kept is not find(servers, "raw:echo")  # it has another schema now


async def test_a_list_that_changes_all_the_time_is_not_read_all_the_time() -> None:
    async with connected({"raw": raw()}) as servers:
        before = view_of(servers, "raw").tools
        await call(servers, "raw:flood_notifications")
        await anyio.sleep(0.5)  # time for many more than six

        async def lists() -> int:
            heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
            count = heard.count("tools/list")
            return count if count >= 2 else 0

        assert await until(lists) <= 6
        after = view_of(servers, "raw").tools
        assert all(old is new for old, new in zip(before, after, strict=True))


# ---- Nonsense ----


@pytest.mark.parametrize("shape", [{}, {"last": True}])
async def test_an_answer_that_is_too_large_is_not_read(shape: dict[str, Any]) -> None:
    async with connected({"raw": raw()}) as servers:
        error = await failure(servers, "raw:big", {"size": 50_000_000, **shape})
        assert error.kind == "too_large"
        assert await is_well(servers)
        details = await call(servers, "raw:big", {"size": 8_000_000})
        assert len(details["content"][0]["text"]) == 8_000_000


async def test_an_answer_that_is_too_large_and_nobodys_ends_the_connection() -> None:
    async with connected({"raw": raw()}) as servers:
        error = await failure(servers, "raw:big", {"size": 9_000_000, "hidden": True})
        assert error.kind == "lost"
        assert "8388608 bytes" in str(error)
        assert await is_well(servers)


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("many_parts", "too_large"),
        ("many_blocks", "too_large"),
        ("deep", "protocol"),
        ("unreadable", "protocol"),
    ],
)
async def test_an_answer_that_would_take_long_to_read_is_refused(tool: str, kind: str) -> None:
    async with connected({"raw": raw()}) as servers:
        assert (await failure(servers, f"raw:{tool}")).kind == kind
        assert await is_well(servers)


@pytest.mark.parametrize("tool", ["garbage", "other_id"])
async def test_what_is_no_answer_is_passed_over(tool: str) -> None:
    async with connected({"raw": raw("banner")}) as servers:
        said = (await call(servers, f"raw:{tool}"))["content"][0]["text"]
        assert said in ("after garbage", "for you")
        assert await is_well(servers)


async def test_a_guests_input_that_is_no_json_does_not_reach_the_wire() -> None:
    async with connected({"raw": raw()}) as servers:
        for given in ({"need": "\ud800"}, {"need": "x" * (1 << 20)}):
            assert (await failure(servers, "raw:echo", given)).kind == "invalid_input"
        assert await is_well(servers)


# ---- Silence ----


@pytest.mark.covers("MC-9")
async def test_a_call_without_an_answer_times_out_and_notifies_the_server() -> None:
    async with connected({"raw": raw(timeoutMs=1_000)}) as servers:
        assert (await failure(servers, "raw:never")).kind == "timeout"
        error = await failure(servers, "raw:only_garbage")
        assert error.kind == "timeout"
        assert "<html>what?</html>" in str(error)
        heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
        assert heard.count("notifications/cancelled") == 2
        assert "ping" in heard  # whether it is well


async def test_a_cancelled_call_ends_at_once_and_notifies_the_server() -> None:
    async with connected({"raw": raw()}) as servers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, servers, "raw:never")
            await idle()  # the call was sent
            tasks.cancel_scope.cancel()
        heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
        assert heard[-2:] == ["notifications/cancelled", "tools/call"]


@pytest.mark.covers("MC-9")
async def test_a_server_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawmode.mcp.connection.PROBE_SECONDS", 0.5)
    entries = {"raw": raw(timeoutMs=1_000), "other": raw()}
    problems: list[str | None] = []
    async with connected(entries, on_change=lambda view: problems.append(view.problem)) as servers:
        pid = (await call(servers, "raw:what_was_heard"))["structuredContent"]["pid"]
        assert (await failure(servers, "raw:stop")).kind == "timeout"
        async with anyio.create_task_group() as tasks:  # those at once wait for nothing either
            for _ in range(3):
                tasks.start_soon(failure, servers, "raw:echo", {"need": "x" * 500_000})
        assert await is_well(servers, "other")
        await until(lambda: "stopped answering" in problems, 10)
        assert (await call(servers, "raw:what_was_heard"))["structuredContent"]["pid"] != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---- Death ----


@pytest.mark.covers("MC-9")
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("kill", "was ended by SIGKILL"),
        ("leave", "exited with status 7 (stderr: fatal: out of cheese)"),
        ("close_output", "closed its output"),
    ],
)
async def test_a_server_that_dies_in_a_call_fails_it_and_is_started_again(
    tool: str, said: str
) -> None:
    async with connected({"raw": raw(), "other": raw()}) as servers:
        error = await failure(servers, f"raw:{tool}")
        assert error.kind == "lost"
        assert said in str(error)
        assert "It is not known whether the call had an effect" in str(error)
        assert await is_well(servers, "other")
        assert await is_well(servers, "raw")
        assert view_of(servers, "raw").problem is None


async def has_heard(servers: McpServers, calls: int) -> bool:
    """Whether the server has received so many calls beside this one."""
    heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
    return heard.count("tools/call") > calls


async def test_all_calls_that_are_open_are_told() -> None:
    async with connected({"raw": raw()}) as servers:
        pid = (await call(servers, "raw:what_was_heard"))["structuredContent"]["pid"]
        kinds: list[str] = []

        async def fail() -> None:
            kinds.append((await failure(servers, "raw:never")).kind)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(fail)
            await until(lambda: has_heard(servers, 20))
            os.kill(pid, signal.SIGKILL)
        assert kinds == ["lost"] * 20


async def test_a_server_that_dies_while_nobody_calls_is_started_again() -> None:
    async with connected({"raw": raw()}) as servers:
        pid = (await call(servers, "raw:what_was_heard"))["structuredContent"]["pid"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: view_of(servers, "raw").state != "ready")
        assert (await call(servers, "raw:what_was_heard"))["structuredContent"]["pid"] != pid


async def test_one_that_dies_again_and_again_is_given_time(tmp_path: Path) -> None:
    async with connected({"raw": raw("good", str(tmp_path / "runs"))}) as servers:
        kinds: list[str] = []
        with anyio.move_on_after(3):
            while True:
                kinds.append((await failure(servers, "raw:leave")).kind)
        assert "unavailable" in kinds or len(kinds) < 6
        assert (tmp_path / "runs").stat().st_size <= 6
        assert len(view_of(servers, "raw").tools) > 20  # those that it had


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("exits", "exited with status 3 (stderr: cannot open the database)"),
        ("silent", "did not answer within 0.6 s"),
        ("babbles", "its stdout is not JSON-RPC: 'Listening on port 8080...'"),
    ],
)
async def test_a_server_that_does_not_start_has_a_problem(mode: str, problem: str) -> None:
    limit = 600 if mode == "silent" else 6_000  # the others have to start within it
    async with connected({"raw": raw(mode, connectTimeoutMs=limit), "other": raw()}) as servers:
        view = view_of(servers, "raw")
        assert view.state in ("down", "connecting")  # which it tries again by itself
        assert view.tools == ()
        assert problem in (view.problem or "")
        assert await is_well(servers, "other")


@pytest.mark.covers("N-34")
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf 'Password: '; sleep 9", "its stdout is not JSON-RPC: 'Password:'"),
        ("printf '\\033[31mred\\n'; sleep 9", r"JSON-RPC: '\\u001b[31mred'"),
        ("printf 'a\\nb\\nc\\n'; sleep 9", "JSON-RPC: 'a' and 2 more lines"),
        ("printf 'error: no index\\n  cause\\nhint: x\\n' >&2; exit 1",
         "status 1 (stderr: error: no index | cause | hint: x)"),
        ("printf 'ValueError: bad\\n1\\n2\\n3\\n+----\\n' >&2; exit 1",
         "(stderr: ValueError: bad | 2 | 3)"),
        ("printf '  | ExceptionGroup: two\\n  +-+-- 1 --\\n    | ValueError: bad\\n    +---\\n'"
         " >&2; exit 1", "(stderr: ExceptionGroup: two | ValueError: bad)"),
    ],
)  # fmt: skip
async def test_a_problem_shows_what_a_server_wrote(script: str, told: str) -> None:
    # One that does not end has to be waited for; if it could not write in time, it is tried again.
    hangs = "sleep" in script
    limit = 600 if hangs else 10_000
    entry = {"command": "sh", "args": ["-c", script], "connectTimeoutMs": limit}
    async with connected({"odd": entry}) as servers:
        if hangs:
            await until(lambda: told in (view_of(servers, "odd").problem or ""))
        assert told in (view_of(servers, "odd").problem or "")


@pytest.mark.covers("N-34")
async def test_what_a_server_writes_to_stderr_is_kept_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "for n in 1 2 3 4 5 6; do echo line $n >&2; done; exit 1"
    servers = {"odd": {"command": "sh", "args": ["-c", script]}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    options = Options(mcp_config=str(tmp_path / "servers.json"), state=str(tmp_path / "state"))
    setup = set_up(options)
    async with open_servers(setup):
        pass
    kept = log_file(setup).read_text()
    assert [f"odd: line {n}" in kept for n in range(1, 7)] == [True] * 6
    assert log_file(setup).stat().st_mode & 0o077 == 0
    assert str(log_file(setup)) in capsys.readouterr().err


@pytest.mark.covers("N-22")
async def test_a_command_with_its_arguments_in_it_says_where_to_put_them() -> None:
    async with connected({"gh": {"command": "npx -y foo"}}) as servers:
        problem = view_of(servers, "gh").problem or ""
    assert "the command 'npx -y foo' was not found: put the arguments into `args`" in problem


async def test_a_server_gets_the_network_settings_of_this_machine_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "SSL_CERT_FILE": "/certs.pem",
        "https_proxy": "http://proxy:3128",
        "UV_INDEX_URL": "https://index.example",
        "UV_PUBLISH_TOKEN": "s3cret",
        "UV_INDEX_ACME_PASSWORD": "s3cret",
        "OPENAI_API_KEY": "s3cret",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    async with connected({"raw": raw(env={"NO_PROXY": "mine"})}) as servers:
        seen = (await call(servers, "raw:environment"))["structuredContent"]["env"]
    assert {name: seen.get(name) for name in given if name in seen} == dict(list(given.items())[:3])
    assert seen["NO_PROXY"] == "mine"


async def test_a_command_that_does_not_exist_is_a_problem_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0)  # another attempt would begin at once
    entries = {
        "no_command": {"command": "clawmode-no-such-command"},
        "no_folder": raw(cwd="/no/such/folder"),
        "no_program": {"command": "/etc"},
    }
    async with connected(entries) as servers:
        problems = {view.name: view.problem for view in servers.views}
        await idle()
        assert {view.state for view in servers.views} == {"down"}
        assert {server._attempts for server in servers._servers.values()} == {1}
    assert problems == {
        "no_command": "cannot be started: the command 'clawmode-no-such-command' was not found",
        "no_folder": "cannot be started: its working directory does not exist",
        "no_program": "cannot be started: the command '/etc' cannot be run: Permission denied",
    }


async def test_a_server_that_comes_up_later_is_there_then(tmp_path: Path) -> None:
    entries = {"raw": raw("starts_the_third_time", str(tmp_path / "runs"))}
    async with connected(entries) as servers:
        assert view_of(servers, "raw").state == "down"
        await until(lambda: view_of(servers, "raw").state == "ready", 8)
        assert await is_well(servers)


async def test_one_that_ignores_new_questions_is_asked_in_the_old_way() -> None:
    async with connected({"raw": raw("ignores_discover", connectTimeoutMs=6_000)}) as servers:
        assert view_of(servers, "raw").state == "ready"


async def test_a_tool_of_servers_that_are_closed_says_so() -> None:
    async with connected({"raw": raw()}) as servers:
        tool = find(servers, "raw:what_was_heard")
    with pytest.raises(McpError) as caught:  # nobody owns it any more
        await tool.execute({}, context())  # pyrefly: ignore[not-async]
    assert caught.value.kind == "unavailable"


# ---- Floods ----


async def test_stderr_goes_to_the_log_escaped_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "clawmode.mcp.stderr")
    async with connected({"raw": raw(timeoutMs=15_000)}) as servers:
        await call(servers, "raw:flood_stderr", limit=15)
        assert await is_well(servers)
    lines = [record.getMessage() for record in caplog.records if "stderr" in record.name]
    assert 50 <= len(lines) <= 200
    assert all(len(line) < 600 and line.isprintable() for line in lines)
    assert "raw: \\u001b[2Jline" in lines


async def test_a_server_that_asks_without_end_and_does_not_listen_is_cut_off() -> None:
    async with connected({"raw": raw()}) as servers:
        error = await failure(servers, "raw:flood_requests")
        assert error.kind == "lost"
        assert "did not read the answers" in str(error)
        assert await is_well(servers)


# ---- Questions ----


async def test_a_question_of_the_server_is_asked() -> None:
    asked: list[Any] = []

    async def ask(request: InputRequest) -> JsonObject:
        asked.append(request)
        await anyio.sleep(1.1)  # longer than a call may take
        return {"name": "Ann"}

    async with connected({"raw": raw(timeoutMs=1_000)}, asks=True) as servers:
        details = await call(servers, "raw:ask", ask=ask)
    assert details["structuredContent"] == {"action": "accept", "content": {"name": "Ann"}}
    schema: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
    assert asked == [InputRequest(message="Your name?", schema=schema)]


async def test_an_answer_gets_the_defaults_of_the_fields_that_it_leaves_out() -> None:
    async def ask(request: InputRequest) -> JsonObject:
        return {"name": "Ann"}

    fields: JsonObject = {
        "name": {"type": "string", "default": "Bob"},
        "age": {"type": "integer", "default": 42},
        "score": {"type": "number", "default": 95.5},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "blue"},
        "verified": {"type": "boolean", "default": True},
        "wrong": {"type": "string", "default": 5},
        "none": {"type": "string"},
    }
    async with connected({"raw": raw()}, asks=True) as servers:
        details = await call(servers, "raw:ask", {"fields": fields}, ask=ask)
    expected = {"name": "Ann", "age": 42, "score": 95.5, "color": "blue", "verified": True}
    assert details["structuredContent"] == {"action": "accept", "content": expected}


async def test_a_question_that_could_be_for_two_people_is_declined() -> None:
    async def ask(request: InputRequest) -> JsonObject:
        return {"name": "Ann"}

    def person(name: str) -> ToolContext:
        return ToolContext(run=RunContext(run_id=name, session_id=name), call_id=name, ask=ask)

    async with connected({"raw": raw()}, asks=True) as servers:
        never: Any = find(servers, "raw:never").execute
        asking: Any = find(servers, "raw:ask").execute
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(never, {}, person("Bob"))
            await until(lambda: has_heard(servers, 1))
            for name, action in (("Ann", "decline"), ("Bob", "accept")):
                result = await asking({}, person(name))
                assert result.details["structuredContent"]["action"] == action
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [None, {"name": {}}, ValueError("no")])
async def test_a_question_that_is_not_answered_well_is_declined(answer: Any) -> None:
    async def ask(request: InputRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with connected({"raw": raw()}, asks=True) as servers:
        details = await call(servers, "raw:ask", ask=ask)
    assert details["structuredContent"] == {"action": "decline"}


async def test_a_question_that_nobody_can_be_asked_is_refused() -> None:
    async with connected({"raw": raw()}) as servers:
        details = await call(servers, "raw:ask")
    assert details["structuredContent"]["error"]["code"] < 0


async def test_a_result_that_asks_for_input_is_answered_and_asked_for_again() -> None:
    async def ask(request: InputRequest) -> JsonObject | None:
        return None if request.url else {"name": "Ann"}

    async with connected({"raw": raw("modern")}, asks=True) as servers:
        details = await call(servers, "raw:asks", ask=ask)
        assert details["structuredContent"] == {
            "given": {
                "who": {"action": "accept", "content": {"name": "Ann"}},
                "pay": {"action": "decline"},
            },
            "at": "here",
        }
        ready = await call(servers, "raw:is_ready_later")
        assert ready == {"content": [{"type": "text", "text": "ready"}]}
        for tool in ("asks_for_ever", "asks_a_model"):
            assert (await failure(servers, f"raw:{tool}")).kind == "protocol"
        heard = (await call(servers, "raw:what_was_heard"))["structuredContent"]["heard"]
        assert heard.count("subscriptions/listen") == 1  # which it does not know
        assert "initialize" not in heard


async def test_without_anybody_to_ask_a_result_that_asks_for_input_is_declined() -> None:
    async with connected({"raw": raw("modern")}) as servers:
        details = await call(servers, "raw:asks")
    given = details["structuredContent"]["given"]
    assert given == {"who": {"action": "decline"}, "pay": {"action": "decline"}}


# ---- The end ----


async def test_what_a_server_has_started_ends_with_it() -> None:
    async with connected({"raw": raw()}) as servers:
        child = (await call(servers, "raw:spawn_child"))["structuredContent"]["pid"]
        assert is_alive(child)
    await until(lambda: not is_alive(child))
    assert not is_alive(child)


async def test_leaving_in_the_middle_of_everything_is_quick() -> None:
    entries = {"raw": raw(timeoutMs=60_000), "silent": raw("silent", connectTimeoutMs=60_000)}
    settled: list[BaseException | None] = []

    async def hang(servers: McpServers) -> None:
        try:
            await call(servers, "raw:never", limit=60)
        except McpError as error:
            settled.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with connected(entries, connect=False) as servers:
                await servers.connect("raw")
                tasks.start_soon(servers.connect, "silent")
                tasks.start_soon(hang, servers)
                await until(lambda: has_heard(servers, 1))
    assert [type(error) for error in settled] == [McpError]


async def test_a_task_that_is_cancelled_leaves_no_process_behind() -> None:
    pids: list[int] = []

    async def use() -> None:
        async with connected({"raw": raw()}) as servers:
            heard = await call(servers, "raw:what_was_heard")
            pids.append(heard["structuredContent"]["pid"])
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await until(lambda: bool(pids))
        tasks.cancel_scope.cancel()
    assert not is_alive(pids[0])


async def test_secrets_are_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected({"raw": raw(env={"TOKEN": "s3cr3t-value"})}) as servers:
        error = await failure(servers, "raw:leave")
        assert "fatal: ***" in str(error)
        views = repr(servers.views)
    assert "s3cr3t-value" not in caplog.text + str(error) + views
