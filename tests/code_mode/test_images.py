"""Images that programs attach: which are accepted, how many, and who gets them."""

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.waiting import until

from clawmode import CodeMode, Pool, RunContext, SqliteStore, Tool, ToolResult, tool
from clawmode.agent.toolbox import CodeModeTools
from clawmode.code_mode.results import join
from clawmode.exceptions import ProtocolError
from clawmode.messages import Image, Text, ToolCall
from clawmode.sandbox.frames import decode_answer, encode, verify
from clawmode.sandbox.protocol import Completion, Output, Start
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


def encoded(start: bytes, size: int = 60) -> str:
    return base64.b64encode(start + bytes(size - len(start))).decode()


PNG = encoded(b"\x89PNG\r\n\x1a\n")
JPEG = encoded(b"\xff\xd8\xff\xe0")
WEBP = encoded(b"RIFF\0\0\0\0WEBP")


@pytest.mark.covers("AD-7")
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"type": "image", "data": PNG, "mimeType": "image/png"}, "image/png"),
        ({"data": JPEG, "mimeType": "text/html"}, "image/jpeg"),
        (f"data:image/svg+xml;base64,{WEBP}", "image/webp"),
        ({"data": f"data:image/gif;base64,{encoded(b'GIF89a')}"}, "image/gif"),
        ({"content": [{"type": "text", "text": "x"}, {"type": "image", "data": PNG}]}, "image/png"),
    ],
)
async def test_an_image_is_attached_with_the_type_of_its_bytes(
    pool: Pool, content: object, kind: str
) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec(f"return image({json.dumps(content)})")
    assert (result.value, result.output) == (1, [])
    assert [each["mimeType"] for each in result.attachments] == [kind]
    assert result.to_json()["attachments"] == [{"mimeType": kind, "bytes": 60}]
    assert PNG not in result.to_text()


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("image({ data: btoa('<svg onload=x>'), mimeType: 'image/png' })", "no PNG, JPEG, GIF or"),
        ("image({ data: '%%%%', mimeType: 'image/png' })", "no PNG, JPEG, GIF or"),
        ("image('')", "no PNG, JPEG, GIF or"),
        ("image('data:image/png,abc')", "not in base64"),
        ("image(5)", "a data URL"),
        ("image(null)", "a data URL"),
        ("image({ content: [] })", "has no image"),
        ("image('A'.repeat(3e7))", "over 3 MiB"),
        (f"for (let i = 0; i < 1000; i++) image('{PNG}')", "may attach 8 images"),
        (f"for (;;) image('{PNG}' + 'A'.repeat(4e6))", "over 6 MiB together"),
        ("image('A'.repeat(1e8))", ""),
    ],
)
async def test_what_is_no_image_or_too_much_is_refused(pool: Pool, source: str, text: str) -> None:
    async with CodeMode(pool=pool) as code_mode:
        result = await code_mode.exec(source)
        assert result.status == "failed", result.status
        assert text in (result.error or "")
        assert len(result.attachments) <= 8
        assert (await code_mode.exec("return 1")).attachments == []


async def test_a_parked_program_keeps_count_and_hands_its_images_over_once(pool: Pool) -> None:
    source = f"""for (let i = 0; i < 5; i++) image("{PNG}");
await yield_control();
for (let i = 0; i < 3; i++) image("{JPEG}");
try {{ image("{PNG}") }} catch (error) {{ return error.message }}"""
    async with CodeMode(pool=pool) as code_mode:
        first = await code_mode.exec(source)
        second = await code_mode.wait(first.run_id)
    assert [len(first.attachments), len(second.attachments)] == [5, 3]
    assert second.value == "image: a program may attach 8 images."


async def test_images_that_nobody_received_wait_in_the_store(pool: Pool, tmp_path: Path) -> None:
    opened = anyio.Event()
    go_on = anyio.Event()

    @tool(idempotent=True)
    async def slow() -> str:
        """Wait."""
        opened.set()
        await go_on.wait()
        return "x"

    context = RunContext(run_id="r", session_id="s", agent_id="a")
    source = f"""await yield_control(); image("{PNG}"); await tools.slow(); return 1"""
    async with CodeMode(
        tools=[slow], pool=pool, store=SqliteStore(tmp_path), context=context
    ) as code_mode:
        parked = await code_mode.exec(source)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(code_mode.wait, parked.run_id)
                await opened.wait()
                tasks.cancel_scope.cancel()
        await until(lambda: not code_mode.cells())
    go_on.set()
    other = RunContext(run_id="other", session_id="s2", agent_id="a")
    async with CodeMode(
        tools=[slow], pool=pool, store=SqliteStore(tmp_path), context=other
    ) as stranger:
        refused = await stranger.wait(parked.run_id)
        assert (refused.code, refused.attachments) == ("invalid_input", [])
    async with CodeMode(
        tools=[slow], pool=pool, store=SqliteStore(tmp_path), context=context
    ) as again:
        found: list[Any] = []
        with anyio.fail_after(20):
            result = await again.wait(parked.run_id)
            found += result.attachments
            while result.status == "waiting":
                result = await again.wait(parked.run_id)
                found += result.attachments
    assert (result.status, result.error) == ("completed", None)
    assert (result.value, [each["data"] for each in found]) == (1, [PNG])


# ---- Who gets them ----


def shot(given: JsonObject, context: ToolContext) -> ToolResult:
    block: JsonObject = {"type": "image", "data": PNG, "mimeType": "image/png"}
    return ToolResult(details={"content": [block]})


SHOT = Tool("take_shot", "Take a picture.", {}, shot, source="mcp", owner="camera", effect="read")


@pytest.mark.covers("AD-7")
async def test_the_image_of_an_mcp_tool_reaches_the_model_beside_the_result(pool: Pool) -> None:
    source = "image(await MCP.camera.takeShot()); text('below'); return 'a picture'"
    async with CodeMode(tools=[SHOT], pool=pool) as code_mode:
        message = await CodeModeTools(code_mode).call(ToolCall("1", "exec", {"code": source}))
    said, picture = message.content
    assert isinstance(said, Text)
    assert '"attachments":[{"mimeType":"image/png","bytes":60}]' in said.text
    assert PNG not in said.text
    assert picture == Image(PNG, "image/png")


async def test_a_client_of_mcp_gets_blocks_of_images() -> None:
    from clawmode.mcp.tool_call import tool_result

    attached: JsonObject = {"data": PNG, "mimeType": "image/png"}
    first: JsonObject = {"status": "waiting", "runId": "r", "attachments": [attached]}
    later: JsonObject = {
        "status": "completed",
        "value": 1,
        "output": [{"type": "text", "text": "x"}],
    }
    made = tool_result(join(first, later))
    assert [block.type for block in made.content] == ["text", "image"]
    assert PNG not in made.content[0].model_dump_json()


@pytest.mark.hostile
def test_a_worker_cannot_pass_on_what_is_no_image() -> None:
    start = Start("return 1")
    for bodies in ([b"PHN2Zz4="], [b"\xff"], [PNG.encode()] * 9, [b"A" * (5 << 20)]):
        answer = Completion(b"1", tuple(Output("image", body) for body in bodies))
        with pytest.raises(ProtocolError):
            verify(start, decode_answer(encode(answer, 1)[4:], 1))
