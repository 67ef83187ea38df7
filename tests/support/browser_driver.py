"""The control page in real Chromium: a gateway in a process of its own, and people at browsers."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from playwright.async_api import Browser, BrowserContext, Locator, Page, ViewportSize
from tests.support.command_driver import configure, serving
from tests.support.gateway_driver import Started
from tests.support.waiting import until

from clawmode.rpc import presence
from clawmode.rpc.client import GatewayClient
from clawmode.testing import ScriptRequest, Turn, call
from clawmode.types import JsonObject

CHROMIUM = os.environ.get("CLAWMODE_CHROMIUM") or shutil.which("chromium") or ""
REQUIRED = os.environ.get("CLAWMODE_REQUIRE_BROWSER") == "1"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDE: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}
MS = 15_000
"""The time for what a browser waits for."""

EXPECTED = ("WebSocket connection to", "Failed to load resource")
"""Errors in the console that a lost connection or a rejected login causes, beside our own words."""


@dataclass
class Desk:
    """A gateway with its page, and the browsers that are open.

    Attributes:
        gateway: The process of the gateway; a test may replace it.
        faults: Exceptions of scripts and violations of the content policy, in all browsers.
    """

    browser: Browser
    folder: Path
    gateway: Started
    arguments: Sequence[str] = ()
    faults: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def token(self) -> str:
        """The token of the process, as commands on this machine use it."""
        known = presence.find(self.state)
        assert known is not None
        return known.token

    def client(self, **options: Any) -> GatewayClient:
        """A client that is not a browser."""
        return GatewayClient.local(self.state, **options)

    def restart(self) -> None:
        """Kills the gateway, and starts it again on the same port."""
        port = self.gateway.port
        self.gateway.kill()
        self.gateway = Started(self.folder, self.state, *self.arguments, port=port)

    async def send(self, session: str, message: str) -> None:
        """Starts a turn in a session of its own; with `obey`, the message is a program."""
        given: JsonObject = {"message": message, "sessionKey": session, "idempotencyKey": session}
        async with self.client() as client:
            await client.call("chat.send", given)

    async def connects(self, server: str) -> None:
        """Waits until the gateway has connected to an MCP server."""

        async def is_ready() -> bool:
            found: Any = await client.call("mcp.servers", {})
            states = {it["name"]: it["state"] for it in found["servers"]}
            return states[server] == "ready"

        async with self.client() as client:
            await until(is_ready)

    async def visitor(self, size: ViewportSize = WIDE, **options: Any) -> Page:
        """A browser of its own, with nothing in it."""
        context = await self.browser.new_context(viewport=size, **options)
        context.set_default_timeout(MS)
        self.contexts.append(context)
        return await self.tab(context)

    async def tab(self, context: BrowserContext) -> Page:
        """Another tab of a browser."""
        page = await context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("console", lambda said: self._heard(said.type, said.text))
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith(EXPECTED):
            self.faults.append(f"console: {text}")

    async def log_in(self, page: Page, view: str = "#/now", token: str = "", url: str = "") -> Page:
        """Enters a token in the form, and waits for the view."""
        await page.goto(f"{url or self.url}/{view}")
        await page.get_by_label("Token").fill(token or self.token())
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("navigation", name="Views").wait_for()
        return page

    async def person(
        self, view: str = "#/now", size: ViewportSize = WIDE, token: str = "", **options: Any
    ) -> Page:
        """A browser of its own that is logged in and shows a view."""
        return await self.log_in(await self.visitor(size, **options), view, token)


def obey(request: ScriptRequest) -> Turn:
    """A model that runs the message of the user as a program, and waits for it."""
    if not request.results:
        return Turn(call("exec", {"code": request.said}))
    last = request.last_result()
    if isinstance(last, dict) and last.get("status") == "waiting":
        return Turn(call("wait", {"runId": last["runId"]}))
    return Turn("Done.")


@asynccontextmanager
async def control(
    browser: Browser, folder: Path, script: Any, *arguments: str, **sections: Any
) -> AsyncIterator[Desk]:
    """A gateway whose agent plays a script, and its page. Fails if a script of the page has failed.

    Args:
        browser: The running Chromium.
        folder: Where the gateway runs.
        script: What the model says, as for `ScriptServer`.
        arguments: More arguments of `clawmode gateway`, such as `--tools`.
        sections: Of the configuration.
    """
    with serving(script) as server, contextlib.ExitStack() as stack:
        configure(folder, server, **sections)
        started = Started(folder, folder / "state", *arguments)
        desk = Desk(browser, folder, started, arguments)
        stack.callback(lambda: desk.gateway.__exit__())
        try:
            yield desk
        finally:
            for context in desk.contexts:
                await context.close()
    assert desk.faults == [], desk.faults


class Proxy:
    """A network between browser and gateway that can fail.

    Attributes:
        up: False to refuse connections.
        url: The address of the page through this network.
    """

    def __init__(self, port: int) -> None:
        self.up = True
        self.url = ""
        self._port = port
        self._open: set[anyio.CancelScope] = set()

    def cut(self) -> None:
        """Ends all connections, without a goodbye, and refuses new ones."""
        self.up = False
        for scope in tuple(self._open):
            scope.cancel()

    async def _serve(self, near: anyio.abc.SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with near:
                    if self.up:
                        async with await anyio.connect_tcp("127.0.0.1", self._port) as far:
                            async with anyio.create_task_group() as tasks:
                                tasks.start_soon(_pass_on, near, far, scope)
                                tasks.start_soon(_pass_on, far, near, scope)
            finally:
                self._open.discard(scope)


async def _pass_on(
    source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, scope: anyio.CancelScope
) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await target.send(data)
    scope.cancel()


def status(page: Page, text: str) -> Locator:
    """Returns what the page says of itself with this text; it may say other things beside it."""
    return page.get_by_role("status").filter(has_text=text)


BACK = """async () => {
  const { src } = document.querySelector("script");
  const { connection } = await import(src.replace("app.js", "connection.js"));
  dispatchEvent(new Event("online"));
  return connection.status.phase === "online";
}"""


async def come_back(page: Page) -> None:
    """Tells the page that the network is back, as browsers do, until it is connected.

    Once is not enough: an attempt that was under way may still fail, and the next one is made
    seconds later.
    """
    await until(lambda: page.evaluate(BACK))


@asynccontextmanager
async def network(desk: Desk) -> AsyncIterator[Proxy]:
    """A network to the gateway of a desk."""
    proxy = Proxy(desk.gateway.port)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, proxy._serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
        tasks.cancel_scope.cancel()
