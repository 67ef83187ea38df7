"""The face of `clawmode mcp` as clients expect it: definitions, results, progress, logs, errors."""

import json
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.support.face_driver import MODES, inside, read
from tests.support.mcp_driver import raw

pytestmark = pytest.mark.anyio


@pytest.mark.covers("MF-3")
@pytest.mark.parametrize("mode", MODES)
async def test_the_two_tools_have_titles_hints_and_what_clients_need_to_load_them(
    mode: str,
) -> None:
    async with inside(mode=mode) as client:
        tools = (await client.list_tools()).tools
    assert [each.name for each in tools] == ["exec", "wait"]
    for each in tools:
        assert each.title
        assert each.annotations is not None
        assert each.annotations.read_only_hint is False
        assert each.annotations.destructive_hint is True
        assert each.meta is not None
        assert each.meta["anthropic/alwaysLoad"] is True
        assert 100_000 < each.meta["anthropic/maxResultSizeChars"] <= 500_000


@pytest.mark.covers("MF-3")
async def test_descriptions_fit_with_any_number_of_servers() -> None:
    entries = {f"a-server-with-a-long-name-{number}": {"command": "true"} for number in range(60)}
    async with inside(entries) as client:
        exec_, wait = (await client.list_tools()).tools
    assert 1000 < len(exec_.description or "") < 2048
    assert len(wait.description or "") < 2048
    assert "MCP.<server>.<tool>" in (exec_.description or "")


@pytest.mark.covers("MF-3")
async def test_a_result_is_sent_once_and_without_counters() -> None:
    async with inside() as client:
        result = await client.call_tool("exec", {"code": "return 1"})
    assert read(result) == {"status": "completed", "value": 1}
    assert len(result.model_dump_json(by_alias=True, exclude_none=True)) < 260


@pytest.mark.covers("MF-4")
@pytest.mark.parametrize("mode", MODES)
async def test_an_unknown_tool_is_an_error_of_the_protocol(mode: str) -> None:
    async with inside(mode=mode) as client:
        for name in ("bash", "", "Exec", "exec "):
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name, {})
            assert caught.value.code == types.INVALID_PARAMS
        assert read(await client.call_tool("exec", {"code": "return 2"}))["value"] == 2


async def asked_state(client: Client) -> types.InputRequiredResult:
    """Runs a program until it asks for an approval, and returns what the client is sent."""
    code = 'return tools.write({ text: "x" })'
    asked = await client.session.call_tool("exec", {"code": code}, allow_input_required=True)
    assert isinstance(asked, types.InputRequiredResult)
    return asked


@pytest.mark.hostile
@pytest.mark.covers("MF-4")
async def test_a_changed_request_state_is_an_error_of_the_protocol() -> None:
    async def answer(context: Any, params: Any) -> types.ElicitResult:
        raise AssertionError("nobody is asked here")

    async with inside(elicitation_callback=answer) as client:
        asked = await asked_state(client)
        state = asked.request_state or ""
        other = state[:-1] + ("0" if state[-1] != "0" else "1")
        accepted = types.ElicitResult(action="accept", content={"decision": "allow-once"})
        answers: Any = dict.fromkeys(asked.input_requests or {}, accepted)
        for changed in (state[:-1], other, "", "x" * 100_000):
            with pytest.raises(MCPError) as caught:
                await client.session.call_tool(
                    "exec", {"code": "return 1"}, request_state=changed, input_responses=answers
                )
            assert caught.value.code == types.INVALID_PARAMS
        # The program still waits for its own answer.
        result = await client.session.call_tool(
            "exec", {"code": "return 1"}, request_state=state, input_responses=answers
        )
        assert isinstance(result, types.CallToolResult)
        assert read(result)["value"] == "wrote x"


@pytest.mark.hostile
@pytest.mark.parametrize("count", [1, 2])
async def test_arguments_cannot_write_lines_of_their_own_into_a_question(count: int) -> None:
    seen: list[str] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        seen.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    hidden = "x\\u2028\\x85\\u202e3. Run read? openclaw:core:read with {}\\u200b"
    calls = [f'tools.write({{ text: "{hidden}" }})'] * count
    async with inside(elicitation_callback=answer) as client:
        code = f"return (await Promise.all([{', '.join(calls)}])).length"
        assert read(await client.call_tool("exec", {"code": code}))["value"] == count
    assert len(seen) == 1
    assert len(seen[0].splitlines()) == 2 + count
    assert seen[0].replace("\n", "").isprintable()
    assert "x\\u2028\\u0085\\u202e3. Run" in seen[0]


@pytest.mark.hostile
@pytest.mark.covers("MF-4")
async def test_an_answer_under_another_key_approves_nothing() -> None:
    async def answer(context: Any, params: Any) -> types.ElicitResult:
        raise AssertionError("nobody is asked here")

    async with inside(elicitation_callback=answer) as client:
        asked = await asked_state(client)
        accepted = types.ElicitResult(action="accept", content={"decision": "allow-always"})
        (key,) = asked.input_requests or {}
        run_id = key.split(":")[0]
        for wrong in (run_id, f"{run_id}:1", f"{key}0", key.upper(), ""):
            again = await client.session.call_tool(
                "exec",
                {"code": "return 1"},
                request_state=asked.request_state,
                input_responses={wrong: accepted},
                allow_input_required=True,
            )
            assert isinstance(again, types.InputRequiredResult)
            assert list(again.input_requests or {}) == [key]


@pytest.mark.covers("MF-3")
@pytest.mark.parametrize("mode", MODES)
async def test_progress_has_the_words_and_numbers_of_the_server(mode: str) -> None:
    heard: list[str] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    async with inside({"raw": raw()}, mode=mode, elicitation_callback=answer) as client:
        code = "await MCP.raw.progress({ steps: 3 })"
        with anyio.fail_after(15):
            await client.call_tool("exec", {"code": code}, progress_callback=report)
    assert any(text.startswith("mcp:raw:progress: step 1 1/3") for text in heard), heard


@pytest.mark.covers("MF-3")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("level", "expected"),
    [(None, []), ("warning", ["failed"]), ("info", ["failed", "completed"])],
)
async def test_nested_calls_are_logged_at_the_level_of_the_client(
    mode: str, level: Any, expected: list[str]
) -> None:
    heard: list[types.LoggingMessageNotificationParams] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params)

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"decision": "allow-once"})

    async with inside(
        mode=mode, log_level=level, logging_callback=log, elicitation_callback=answer
    ) as client:
        if mode == "legacy" and level is not None:
            request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
            await client.session.send_request(request, types.EmptyResult)
        code = 'await tools.write({ no: 1 }).catch(() => 0); await tools.write({ text: "x" })'
        assert read(await client.call_tool("exec", {"code": code}))["status"] == "completed"
    states = [each.data["text"].rpartition(" ")[2] for each in heard]
    assert states == expected
    assert "wrote" not in json.dumps([each.data for each in heard])  # neither input nor output


@pytest.mark.covers("MF-2")
async def test_a_program_that_hides_the_error_does_not_hide_that_nobody_can_approve() -> None:
    async with inside() as client:
        hidden = 'await tools.write({ text: "x" }).catch(() => 0); return 1'
        first = read(await client.call_tool("exec", {"code": hidden}))
        shown = read(await client.call_tool("exec", {"code": 'await tools.write({ text: "x" })'}))
        free = read(await client.call_tool("exec", {"code": "return 1"}))
    assert first["value"] == 1
    assert "cannot ask a person" in first["note"]
    assert "--approve always" in first["note"]
    assert "trustAnnotations" in first["note"]
    assert "--approve always" in shown["error"]
    assert "note" not in shown
    assert "note" not in free
