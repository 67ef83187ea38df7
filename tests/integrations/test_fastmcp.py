"""`ClawMode` as the code mode of FastMCP servers: programs in JavaScript, through a real client."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.experimental.transforms.code_mode import CodeMode
from fastmcp.server.middleware import Middleware
from tests.support.adapters import check_versions

from clawmode import Pool
from clawmode.integrations.fastmcp import DESCRIPTION, ClawMode, ClawModeSandbox

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs/integrations/fastmcp.md"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


class Watch(Middleware):
    """Notes the calls that the server gets."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        self.seen.append(context.message.name)
        return await call_next(context)


class Shop:
    """A server with tools, and its client."""

    def __init__(self, pool: Pool, **given: Any) -> None:
        self.watch, self.started, self.ended = Watch(), anyio.Event(), False
        self.sandbox = ClawModeSandbox(pool=pool, **given)
        transform = ClawMode(sandbox=self.sandbox, max_tool_calls=20)
        self.server: FastMCP[Any] = FastMCP("shop", middleware=[self.watch], transforms=[transform])

        @self.server.tool
        async def stock(item: str) -> dict[str, int]:
            """Count the pieces of an item."""
            if item == "gold":
                raise ToolError("gold is not sold here")
            return {"pieces": len(item)}

        @self.server.tool
        async def whose(context: Context) -> str:
            """Tell the request."""
            return str(context.request_id)

        @self.server.tool
        async def hang() -> str:
            """Hang."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended = True
            return ""


@asynccontextmanager
async def served(pool: Pool, **given: Any) -> AsyncIterator[tuple[Shop, Any]]:
    shop = Shop(pool, **given)
    async with Client(shop.server) as client:

        async def run(code: str) -> Any:
            made: Any = await client.call_tool("execute", {"code": code}, raise_on_error=False)
            return f"failed: {made.content[0].text}" if made.is_error else made

        yield shop, run
    await shop.sandbox.aclose()


@pytest.mark.covers("FW-24")
async def test_a_program_calls_the_tools_of_the_server_through_its_middleware(pool: Pool) -> None:
    source = """
    const items = [...Array(12).keys()].map(n => 'x'.repeat(n))
    const all = await Promise.all(items.map((item: string) => call_tool('stock', {item})))
    return all.reduce((sum, each) => sum + each.pieces, 0)
    """
    async with served(pool) as (shop, run):
        assert (await run(source)).content[0].text == "66"
        assert shop.watch.seen == ["execute"] + ["stock"] * 12
        assert (await run("return [await call_tool('whose')]")).content[0].text != "[null]"


@pytest.mark.covers("FW-24")
async def test_the_model_reads_about_javascript(pool: Pool) -> None:
    shop = Shop(pool)
    async with Client(shop.server) as client:
        tools = {each.name: each for each in await client.list_tools()}
        assert list(tools) == ["search", "get_schema", "execute"]
        execute = tools["execute"]
        assert execute.description == DESCRIPTION
        assert "Python" not in str(execute)
        assert "JavaScript" in execute.input_schema["properties"]["code"]["description"]
    await shop.sandbox.aclose()


async def test_failures_say_what_was_wrong_and_where(pool: Pool) -> None:
    async with served(pool) as (_, run):
        caught = "try { await call_tool('stock', {item: 'gold'}) } catch (e) { return e.message }"
        assert "gold is not sold here" in (await run(caught)).content[0].text
        said = await run("const a = 1\nawait call_tool('stock', {itm: 'x'})")
        assert "Valid parameters for stock (* = required): item*" in said
        assert "(cell:2:7)" in said
        assert "function" not in said
        assert "Unknown tool: nope" in await run("await call_tool('nope', {})")
        assert "SyntaxError" in await run("return 1 +")
        many = "for (let n = 0; n < 30; n++) await call_tool('stock', {item: 'x'})"
        assert "at most 20" in await run(many)


async def test_output_and_images_come_with_the_value(pool: Pool) -> None:
    async with served(pool) as (_, run):
        made = await run("console.log('seen'); return {a: 1}")
        output = [{"type": "text", "text": "seen"}]
        assert made.structured_content == {"output": output, "value": {"a": 1}}
        made = await run(f"image('data:image/png;base64,{PIXEL}'); return 7")
        assert [each.type for each in made.content] == ["text", "image"]


@pytest.mark.hostile
@pytest.mark.covers("FW-25")
async def test_hostile_programs_reach_nothing_and_leave_nothing(pool: Pool) -> None:
    config = {"timeoutMs": 2000, "memoryLimitBytes": 16 << 20}
    async with served(pool, config=config, max_seconds=4) as (shop, run):
        assert "longer than it may" in await run("while (true) {}")
        assert "failed" in await run("const all = []; while (true) all.push('x'.repeat(1e6))")
        assert "longer than 4 seconds" in await run("await new Promise(r => setTimeout(r, 1e8))")
        names = (
            "['process', 'require', 'fetch', 'Deno', 'WebAssembly'].filter(n => n in globalThis)"
        )
        assert (await run(f"return JSON.stringify({names})")).content[0].text == "[]"
        await run("store('secret', 1); globalThis.secret = 2; return 1")
        left = "return String(load('secret') ?? globalThis.secret ?? 'nothing')"
        assert (await run(left)).content[0].text == "nothing"
        escape = "} function call_tool() { return 'forged' } {"
        assert "SyntaxError" in await run(escape)
        assert shop.watch.seen.count("stock") == 0


async def test_a_cancelled_call_ends_its_program_and_the_tools_that_it_called(pool: Pool) -> None:
    shop = Shop(pool)
    functions = {"hang": (await shop.server.get_tool("hang")).fn}  # type: ignore[union-attr]
    run = asyncio.create_task(shop.sandbox.run("await hang()", external_functions=functions))
    await shop.started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert shop.ended
    await shop.sandbox.aclose()


async def test_concurrent_programs_call_their_own_functions(pool: Pool) -> None:
    sandbox = ClawModeSandbox(pool=pool)

    async def ask(number: int) -> Any:
        functions = {"who": lambda: number, "twice": lambda x: {"bytes": bytes([x, x])}}
        source = "return [await who(), (await twice(given)).bytes]"
        return await sandbox.run(source, inputs={"given": 1}, external_functions=functions)

    assert await asyncio.gather(*map(ask, range(5))) == [[n, "AQE="] for n in range(5)]
    with pytest.raises(ValueError, match="cannot be a name"):
        await sandbox.run("return 1", external_functions={"x; y": print})
    await sandbox.aclose()


async def test_the_sandbox_works_in_fastmcps_own_code_mode(pool: Pool) -> None:
    sandbox = ClawModeSandbox(pool=pool)
    own = CodeMode(sandbox_provider=sandbox, execute_description=DESCRIPTION)
    server: FastMCP[Any] = FastMCP("own", transforms=[own])
    async with Client(server) as client:
        made = await client.call_tool("execute", {"code": "return 40 + 2"})
        assert made.content[0].text == "42"  # type: ignore[union-attr]
    await sandbox.aclose()


async def test_calls_that_need_an_approval_fail_because_nobody_can_be_asked(pool: Pool) -> None:
    async with served(pool, ask_for=["call_tool"]) as (shop, run):
        assert "nobody can be asked" in await run("return await call_tool('stock', {item: 'x'})")
        assert shop.watch.seen == ["execute"]


@pytest.mark.covers("FW-4")
def test_a_fastmcp_that_does_not_fit_is_named() -> None:
    check_versions("fastmcp", r"needs fastmcp >=4.1,<5, .*clawmode\[fastmcp\]", None, "4.0", "5.0")


async def test_the_examples_of_the_page(pool: Pool) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    given: dict[str, Any] = {"__name__": "shop"}
    exec(source, given)
    [program] = re.findall(r"```js\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    async with Client(given["server"]) as client:
        made = await client.call_tool("execute", {"code": program})
        assert made.content[0].text == '["pears","plums"]'  # type: ignore[union-attr]
