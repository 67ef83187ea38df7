"""What holds in every view: small screens, the keyboard, dark mode, few rights, hostile text."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from tests.support.browser_driver import PHONE, Desk, control
from tests.support.conversations import talk
from tests.support.plugin_material import plugin

from clawmode.models.base import ModelError
from clawmode.rpc.tokens import Tokens
from clawmode.testing import ScriptRequest, Turn, call

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
HIDDEN = "safe\u202egnp.exe \x1b[2J\x1b[31mred\u200b"
HOSTILE = f"{MARKUP} {HIDDEN}"
LINE = "w" * 1_000_000
WORDS = LINE[:100_000]  # more fits in no variable of the environment
KEY = "agent%3Amain%3Astrange"

SHOP = f'''
from clawmode import tool

@tool(effect="read")
async def strange() -> str:
    """Answers with {MARKUP}."""
    return {HOSTILE!r} + "r" * 30000

@tool(effect="read")
async def raises() -> str:
    raise ValueError({HOSTILE!r})

TOOLS = [strange, raises]
'''
PROGRAM = f"""// {HOSTILE}
const got = await tools.strange();
text(got);
try {{ await tools.raises(); }} catch (error) {{ text(String(error)); }}
return {{ [{json.dumps(HOSTILE)}]: got }};
"""
CHECKS = Path(__file__).with_name("checks.js").read_text("utf-8")
SERVER = str(Path(__file__).parents[1] / "support" / "raw_server.py")
OFFER = {
    "tools": [
        {"name": f"t{HOSTILE}", "description": HOSTILE + WORDS, "inputSchema": {"type": "object"}},
        {"name": "plain", "description": HOSTILE, "inputSchema": {"type": "object"}},
    ]
}
VIEWS = (
    "#/now",
    "#/approvals",
    "#/sessions",
    f"#/sessions/{KEY}",
    f"#/chat/{KEY}",
    "#/tools",
    "#/tools/catalog/openclaw%3Acore%3Astrange",
    "#/tools/prompt",
    "#/tools/run",
    "#/operation/servers",
    "#/operation/jobs",
    "#/operation/plugins",
    "#/operation/log",
    "#/operation/configuration",
    "#/operation/tokens",
    "#/operation/doctor",
)


def model(asked: ScriptRequest) -> Turn:
    """Says hostile things, in every way that a model can."""
    if asked.said.startswith("fail"):
        return Turn(error=ModelError("invalid_request", HOSTILE))
    if not asked.results:
        return Turn(HOSTILE, call("exec", {"code": PROGRAM}))
    return Turn(HOSTILE)


@pytest.fixture(scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("everywhere")
    (folder / "shop.py").write_text(SHOP)
    plugin(folder / "plugins" / "garden", f"raise OSError({HOSTILE!r})", description=HOSTILE)
    environment = {"OFFER": json.dumps(OFFER)}
    servers = {
        "odd": {"command": sys.executable, "args": [SERVER, "listed"], "env": environment},
        "broken": {"command": sys.executable, "args": ["-c", f"raise SystemExit({HOSTILE!r})"]},
    }
    job = {"id": "daily", "cron": "0 8 * * *", "message": HOSTILE}
    sections = {
        "mcpServers": servers,
        "cron": {"jobs": [job]},
        "plugins": {"load": {"paths": [str(folder / "plugins")]}},
        "agents": {
            "defaults": {"model": "mine/small"},
            "list": [{"id": "main", "name": HOSTILE}, {"id": "other"}],
        },
    }
    arguments = ("--tools", "shop:TOOLS")
    async with control(browser, folder, model, *arguments, **sections) as made:
        await made.connects("odd")
        await talk(made, "strange", f"{HOSTILE}\n{LINE}", "fail now", title=HOSTILE)
        yield made


async def check(page: Page, name: str) -> Any:
    """The result of a function of `checks.js`."""
    return await page.evaluate(f"({CHECKS}).{name}()")


async def show(page: Page, view: str) -> None:
    """Opens a view, and waits until it has read what it shows."""
    await page.evaluate(
        """async (view) => {
          if (location.hash !== view) {
            const changed = new Promise((resolve) => addEventListener("hashchange", resolve));
            location.hash = view;
            await changed;
          }
          for (let n = 0; n < 3; n++) await new Promise(requestAnimationFrame);
        }""",
        view,
    )
    await expect(page.get_by_text("Loading…")).to_have_count(0)
    await page.locator("main h1:visible, main h2:visible").first.wait_for()


@pytest.mark.covers("CP-28", "CP-29")
@pytest.mark.hostile
async def test_words_of_strangers_are_text_in_every_view_and_fit_on_a_phone(desk: Desk) -> None:
    page = await desk.person("#/now", PHONE, color_scheme="dark")
    page.on("dialog", lambda dialog: desk.faults.append(f"dialog: {dialog.message}"))
    shown = {}
    for view in VIEWS:
        await show(page, view)
        assert await check(page, "trouble") == [], view
        for link in await page.locator("nav [aria-current]").all():
            await expect(link).to_be_in_viewport(ratio=0.9)
        shown[view] = await page.locator("main").inner_text()
    for view in (f"#/sessions/{KEY}", f"#/chat/{KEY}", "#/sessions", "#/operation/plugins"):
        assert "<script>alert(1)</script>" in shown[view], view
        assert "\\u202e" in shown[view], view


@pytest.mark.covers("CP-28")
@pytest.mark.hostile
async def test_a_line_of_a_megabyte_is_cut_and_can_be_read_on(desk: Desk) -> None:
    page = await desk.person(f"#/chat/{KEY}")
    more = page.get_by_role("button", name="more of").last
    await expect(more).to_be_visible()
    before = await page.evaluate("document.body.textContent.length")
    await more.click()
    await page.wait_for_function(f"document.body.textContent.length > {before} + 10000")


@pytest.mark.covers("CP-28")
@pytest.mark.hostile
async def test_hostile_names_of_tools_can_be_searched_opened_and_run(desk: Desk) -> None:
    page = await desk.person("#/tools")
    await page.get_by_label("Search the catalog").fill("plain odd safe")
    rows = page.get_by_label("Tools", exact=True).get_by_role("listitem")
    await expect(rows.first).to_be_visible()
    assert await check(page, "trouble") == []
    await rows.first.click()
    await expect(page.locator(".detail-pane .code").first).to_be_visible()
    assert await check(page, "trouble") == []
    await show(page, "#/tools/run")
    await page.get_by_label("Program", exact=True).fill(PROGRAM)
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_label("Result of the program").locator(".result")).to_be_visible()
    troubles = [it for it in await check(page, "trouble") if not it.startswith("invisible: // ")]
    assert troubles == []


@pytest.mark.covers("CP-29")
async def test_everything_can_be_reached_with_the_keyboard(desk: Desk) -> None:
    page = await desk.person("#/now")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the content")).to_be_focused()
    await page.get_by_role("link", name="Sessions").focus()
    await page.keyboard.press("Enter")
    await page.locator(".session-row").first.wait_for()
    await page.get_by_label("Search sessions").focus()
    for _ in range(4):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.classList.contains('windowed')"):
            break
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.locator(".detail-pane h2")).to_be_visible()
    for view in ("#/sessions", f"#/chat/{KEY}", "#/tools", "#/tools/run", "#/operation/log"):
        await show(page, view)
        await page.get_by_text("Skip to the content").focus()
        places = []
        for _ in range(60):
            await page.keyboard.press("Tab")
            # The focus must be visible, and must leave every field again.
            places.append(await check(page, "focus"))
            if places[-1] == "end":
                break
        assert places[-1] == "end", view
        assert [it for it in places if it.startswith("hidden")] == [], view


@pytest.mark.covers("CP-29")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_words_can_be_read_in_light_and_dark_mode(desk: Desk, scheme: str) -> None:
    page = await desk.person("#/now", color_scheme=scheme)
    behind = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (behind == "rgb(20, 23, 22)") is (scheme == "dark")
    for view in VIEWS:
        await show(page, view)
        assert await check(page, "pale") == [], view


@pytest.mark.covers("CP-27")
async def test_a_token_that_may_only_read_sees_what_it_may_not_do_and_why(desk: Desk) -> None:
    token = Tokens(desk.state).add("reader", ("operator.read",))
    page = await desk.person(f"#/sessions/{KEY}", token=token)
    for name in ("New session", "New conversation", "Export"):
        button = page.get_by_role("button", name=name)
        await expect(button).to_have_attribute("aria-disabled", "true")
        await expect(button).to_contain_text("Your token needs the scope operator.")
    await expect(page.get_by_label("Message", exact=True)).to_be_disabled()
    await show(page, "#/tools/run")
    await expect(page.get_by_role("button", name="Run")).to_contain_text("operator.admin")
    for view, words in (
        ("log", "The log is not shown"),
        ("configuration", "The configuration is not shown"),
        ("tokens", "The list of tokens is not shown"),
    ):
        await show(page, f"#/operation/{view}")
        await expect(page.get_by_text(words)).to_be_visible()
        await expect(page.get_by_text("Your token needs the scope operator.admin.")).to_be_visible()
