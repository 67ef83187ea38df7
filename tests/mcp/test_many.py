"""Fifty servers at once, some of them bad."""

import itertools
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from tests.support.mcp_driver import call, connected, raw
from tests.support.waiting import until
from tests.support.web_server import Request, web_server

from clawmode.config.mcp import read_servers
from clawmode.exceptions import ConfigurationError
from clawmode.mcp import supervisor
from clawmode.mcp.servers import McpServers
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.supervisor import ServerView
from clawmode.mcp.wire import Link
from clawmode.tasks import TimedSlot

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
        f"bad{number}": raw(mode, **({} if mode == "no_list" else {"connectTimeoutMs": 1_000}))
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


@pytest.mark.covers("M-25")
async def test_a_server_that_waits_for_its_turn_has_its_whole_time_and_hung_ones_do_not_keep_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clawmode.mcp.servers.MIN_STARTING", 1)
    monkeypatch.setattr("clawmode.mcp.servers.PER_PROCESSOR", 0)
    turns = itertools.chain([4.0], itertools.repeat(60.0))  # only the first is hung

    def slot(limiter: anyio.CapacityLimiter, seconds: float) -> TimedSlot:
        return TimedSlot(limiter, next(turns))

    monkeypatch.setattr(supervisor, "TimedSlot", slot)
    starting: set[str] = set()
    most: list[int] = []
    opened = supervisor.open_stdio

    def counted(settings: ServerSettings, link: Link) -> AbstractAsyncContextManager[Any]:
        starting.add(settings.name)
        most.append(len(starting & {"a", "b", "c"}))
        return opened(settings, link)

    monkeypatch.setattr(supervisor, "open_stdio", counted)
    entries = {"hung": raw("silent", connectTimeoutMs=60_000)}
    # Less time than they wait for their turn.
    entries |= {name: raw("twenty", connectTimeoutMs=3_500) for name in "abc"}
    ready: list[str] = []

    def note(view: ServerView) -> None:
        if view.state == "ready":
            starting.discard(view.name)
            ready.append(view.name)

    async with connected(entries, connect=False, on_change=note) as servers:
        servers.begin()
        await until(lambda: {"a", "b", "c"} <= {*ready}, 13)  # 9 s after the hung one's turn
    assert max(most) == 1


async def test_a_server_over_http_needs_no_turn() -> None:
    slots = anyio.CapacityLimiter(1)
    slots.acquire_on_behalf_of_nowait("another")

    async def answer(request: Request) -> None:
        await request.answer({"content": []})

    async with web_server(answer) as web:
        (settings,) = read_servers({"web": {"url": web.url}}).unwrap()
        made = supervisor.ServerSupervisor(
            settings,
            slots,
            asks=False,
            logs=False,
            on_change=lambda view: None,
            auth=lambda _: None,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            with anyio.fail_after(10):
                await made.bring_up()
            assert made.view.state == "ready"
            made.close()
