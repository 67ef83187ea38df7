"""Takes the pictures of the control page for the docs: `make screenshots`.

A real gateway serves the page; a script plays the model. The pictures show the same content each
time: times and durations are replaced before a picture is taken.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import anyio
from playwright.async_api import Browser, Page, async_playwright, expect

from clawmode import GatewayClient
from clawmode.rpc.tokens import Tokens
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call, pause

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
BROWSER = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")
MAX_BYTES = 150_000
SECONDS = 30.0

Do: TypeAlias = Callable[[Page], Awaitable[None]]

STOCK = """\
// What is nearly sold out?
const products = await tools.list_products();
const rows = await Promise.all(products.map(async (product) => {
  const { structuredContent } = await MCP.warehouse.stock({ product });
  const price = await tools.get_price({ product });
  return { product, price, stock: structuredContent.result };
}));
text(`${rows.length} products`);
return rows.filter(({ stock }) => stock < 10);
"""
ORDER = """\
// Two products are nearly sold out.
const orders = await Promise.all([
  tools.place_order({ product: "coffee", amount: 60 }),
  tools.place_order({ product: "cake", amount: 20 }),
]);
return orders.length;
"""
TRIED = """\
const products = await tools.list_products();
const prices = await Promise.all(products.map((product) => tools.get_price({ product })));
text(`the shop has ${products.length} products`);
return Object.fromEntries(products.map((product, at) => [product, prices[at]]));
"""
ANSWER = (
    "The stock is worth 413.70.\n\n"
    "Two products need attention:\n"
    "  •  coffee is sold out\n"
    "  •  cake is down to 7 pieces\n\n"
    "Shall I order 60 of coffee and 20 of cake?"
)


def model(request: ScriptRequest) -> Turn:
    """Plays the model: it writes a program for each question, and reports what it found."""
    asked = request.said
    if "stock" in asked:
        if not request.results:
            return Turn("I will look at prices and stock.", call("exec", {"code": STOCK}))
        return Turn(ANSWER)
    if "Order" in asked:
        found = request.last_result() if len(request.results) > 1 else None
        if isinstance(found, dict) and found.get("status") == "waiting":
            return Turn(call("wait", {"runId": found["runId"]}))
        return Turn("I will order both.", call("exec", {"code": ORDER}))
    if "report" in asked:
        return Turn(
            "The week was quiet: 212 orders, 3 of them returned. ",
            "Tea sold best, as in the weeks before. ",
            pause(600.0),
        )
    return Turn("The shop opens at nine.")


# ---- The gateway ----


@dataclass
class Scene:
    """A gateway with content, and a client of it."""

    url: str
    token: str
    client: GatewayClient

    async def visit(self, browser: Browser, **options: Any) -> "Camera":
        """Logs in with the token form, as a person does."""
        page = await browser.new_page(viewport={"width": 1280, "height": 860}, **options)
        await page.goto(f"{self.url}/login")
        await page.get_by_label("Token").fill(self.token)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("navigation", name="Views").wait_for()
        return Camera(page, self.url)

    async def say(self, key: str, title: str, message: str, *, wait: bool = True) -> str:
        """Creates a session and sends it a message; returns its key."""
        await self.client.call("sessions.create", {"sessionKey": key, "title": title})
        sent = await self.client.call("agent", {"sessionKey": key, "message": message})
        if wait:
            await self.client.call("agent.wait", {"runId": sent["runId"]})
        return quote(str(sent["sessionKey"]), safe="")


def configure(folder: Path, url: str) -> None:
    """Writes the configuration of the shop."""
    warehouse = {
        "command": sys.executable,
        "args": [str(ROOT / "examples/warehouse_server.py")],
        "trustAnnotations": True,
    }
    whole = {
        "agents": {
            "defaults": {"model": "scripted/small"},
            "list": [{"id": "main", "name": "Shopkeeper"}, {"id": "night", "name": "Night watch"}],
        },
        "models": {
            "providers": {
                "scripted": {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use"}
            }
        },
        "mcpServers": {"warehouse": warehouse, "mail": {"url": "http://127.0.0.1:9/mcp"}},
        "plugins": {"load": {"paths": [str(ROOT / "examples/plugins")]}},
        "tools": {"codeMode": True},
        "cron": {
            "jobs": [
                {
                    "id": "morning",
                    "cron": "0 8 * * 1-5",
                    "tz": "Europe/Berlin",
                    "message": "Say what is nearly sold out.",
                }
            ]
        },
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole, indent=2))


@asynccontextmanager
async def opened() -> AsyncIterator[Scene]:
    """Starts the gateway with its content."""
    with tempfile.TemporaryDirectory() as name:
        folder, state = Path(name), Path(name) / "state"
        state.mkdir(mode=0o700)
        token = Tokens(state).add("ann")
        async with ScriptServer(model) as server:
            configure(folder, server.url)
            command = [
                *(sys.executable, "-m", "clawmode", "gateway", "--json", "--port", "0"),
                *("--state", str(state), "--config", str(folder / "clawmode.json5")),
                *("--tools", "examples.shop:TOOLS"),
            ]
            environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
            process = await anyio.open_process(
                command, cwd=folder, env=environment, stderr=subprocess.DEVNULL
            )
            try:
                assert process.stdout is not None
                with anyio.fail_after(SECONDS):
                    url = json.loads(await process.stdout.receive())["url"]
                async with GatewayClient(url, token, client_id="screenshots") as client:
                    yield Scene(url.replace("ws", "http", 1), token, client)
            finally:
                process.terminate()
                await process.wait()


# ---- The pictures ----

FREEZE = """() => {
  for (const time of document.querySelectorAll("time")) time.textContent = "10:42:07";
}"""
"""Replaces the time of day, which says nothing. Durations are real."""


class Camera:
    """A browser that is logged in, and writes pictures to the docs."""

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._url = url

    async def shoot(
        self, name: str, view: str, *ready: str, do: Do | None = None, height: int = 860
    ) -> None:
        """Opens a view, waits for texts on it, and takes the picture.

        Args:
            name: The name of the file.
            view: The address of the view, such as `#/now`.
            ready: Texts that must be visible.
            do: What a person does before the picture is taken.
            height: The height of the picture.
        """
        page = self._page
        await page.set_viewport_size({"width": 1280, "height": height})
        await page.goto(f"{self._url}/{view}")
        if do is not None:
            await do(page)
        for text in ready:
            await page.get_by_text(text).first.wait_for()
        await page.mouse.move(0, 0)
        await page.evaluate(FREEZE)
        path = FOLDER / f"{name}.png"
        await page.screenshot(path=path, animations="disabled")
        size = path.stat().st_size
        assert size < MAX_BYTES, f"{path.name} has {size} bytes, and may have {MAX_BYTES}"
        print(f"{path.relative_to(ROOT)}: {size // 1000} KB")


async def see_question(page: Page) -> None:
    """Waits until a question can be answered: not as soon as it is shown."""
    await expect(page.get_by_role("button", name="Allow all 2 once")).to_be_enabled()


async def run_program(page: Page) -> None:
    """Runs a program in the editor."""
    await page.get_by_label("Program", exact=True).fill(TRIED)
    await page.get_by_role("button", name="Run").click()


async def show_program(page: Page) -> None:
    """Scrolls to the program of a transcript."""
    await page.locator(".call").first.evaluate(
        """(it) => {
          it.closest(".scroller").scrollTop = it.offsetTop - it.closest(".scroller").offsetTop - 40;
        }"""
    )


async def main() -> None:
    """Takes all pictures."""
    FOLDER.mkdir(exist_ok=True)
    async with opened() as scene, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=[*FLAGS])
        try:
            stock = await scene.say("stock", "What the stock is worth", "How is our stock?")
            await scene.say("hours", "Opening hours", "When do we open?")
            await scene.say("orders", "Orders for the week", "Order what is missing.", wait=False)
            report = await scene.say("report", "Weekly report", "Write the report.", wait=False)
            light = await scene.visit(browser)
            await light.shoot("dashboard-now", "#/now", "place_order", "get_price")
            await light.shoot("dashboard-approvals", "#/approvals", do=see_question, height=440)
            view = f"#/sessions/{stock}"
            await light.shoot("dashboard-sessions", view, "Turn ended", do=show_program)
            await light.shoot("dashboard-tools", "#/tools/run", '"coffee": 4.5', do=run_program)
            await light.shoot("dashboard-operation", "#/operation/servers", "down", height=320)
            dark = await scene.visit(browser, color_scheme="dark")
            await dark.shoot("dashboard-chat", f"#/chat/{report}", "Tea sold best", height=520)
        finally:
            await browser.close()


if __name__ == "__main__":
    anyio.run(main)
