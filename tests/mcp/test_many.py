"""Fifty servers at once, some of them bad."""

import time

import anyio
import pytest
from tests.support.mcp_driver import call, connected, raw
from tests.support.waiting import until

from clawmode.config.mcp import read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.servers import McpServers
from clawmode.mcp.supervisor import ServerView

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def test_fifty_servers_of_twenty_tools_connect_side_by_side() -> None:
    entries = {f"s{number}": raw("twenty") for number in range(50)}
    seen: list[ServerView] = []
    began = time.monotonic()
    async with connected(entries, connect=False) as servers:
        views = await servers.connect(on_progress=seen.append)
        assert time.monotonic() - began < 20  # 1.5 s where nobody else is
        assert {view.state for view in views} == {"ready"}
        assert len(seen) == 50
        assert len(servers.tools()) == 50 * 20

        async def ask(number: int) -> None:
            details = await call(servers, f"s{number}:tool{number % 20}")
            assert details["structuredContent"]["tool"] == f"tool{number % 20}"

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(ask, number)


async def test_a_server_that_nobody_knows_cannot_be_connected() -> None:
    async with connected({"s": raw("twenty"), "off": raw(disabled=True)}) as servers:
        assert [view.state for view in servers.views] == ["ready", "disabled"]
        with pytest.raises(ConfigurationError, match="no MCP server named 'x'"):
            await servers.connect("x")
    settings = read_servers({"s": {"command": "x"}}).unwrap()
    with pytest.raises(ConfigurationError, match="two MCP servers"):
        McpServers([*settings, *settings])


@pytest.mark.covers("MC-9")
async def test_bad_servers_do_not_hold_up_the_good_ones() -> None:
    bad = {
        f"bad{number}": raw(mode, connectTimeoutMs=1_000)
        for number, mode in enumerate(["silent", "exits", "babbles", "no_list"] * 2)
    }
    good = {f"good{number}": raw("twenty") for number in range(4)}
    ready: list[str] = []
    async with connected(bad | good, connect=False) as servers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: servers.connect(on_progress=lambda view: ready.append(view.name))
            )
            await until(lambda: {*good} <= {*ready})
            for name in good:
                await call(servers, f"{name}:tool1")
        states = {view.name: view.state for view in servers.views}
    # One that failed may be trying again already.
    assert [states[name] == "ready" for name in bad] == [False, False, False, True] * 2
