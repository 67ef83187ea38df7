"""The login in a browser: by link, by token, and what becomes of both."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, expect
from tests.support.browser_driver import PHONE, Desk, control, status
from tests.support.forking import shared_zygote

from clawmode.rpc.client import GatewayClient
from clawmode.testing import Turn

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

HELLO = [Turn("Hello.")]
FITS = "document.documentElement.scrollWidth <= innerWidth"


async def link(desk: Desk) -> str:
    """What `clawmode dashboard` prints."""
    given = ("dashboard", "--no-open", "--state", str(desk.state), "--config", "clawmode.json5")
    done = await anyio.to_thread.run_sync(lambda: shared_zygote().run(*given, cwd=desk.folder))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.covers("CP-2")
async def test_a_link_logs_one_browser_in_and_leaves_no_trace(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, HELLO) as desk:
        address = await link(desk)
        code = address.partition("code=")[2]
        first, second = await desk.visitor(), await desk.visitor()
        asked: list[str] = []
        first.on("request", lambda request: asked.append(f"{request.url} {request.headers}"))
        await first.goto(address)
        await expect(first.get_by_role("heading", name="Now")).to_be_visible()
        await second.goto(address)
        await expect(status(second, "used already, or has expired")).to_be_visible()
        # The code is in no address, no referrer and no history; scripts do not see the cookie.
        assert code not in first.url + "".join(asked)
        assert await first.evaluate("document.cookie") == ""
        assert await first.evaluate("Object.keys(localStorage).length") == 0
        await first.go_back()
        assert code not in first.url
        (cookie,) = await first.context.cookies()
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
        assert code not in desk.gateway.log.read_text("utf-8")


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_a_link_of_somebody_else_logs_nobody_in_without_a_click(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, HELLO) as desk:
        async with desk.client() as client:
            made: Any = await client.call("tokens.create", {"name": "mallory"})
        url = f"ws{desk.url.removeprefix('http')}"
        async with GatewayClient(url, made["token"], client_id="mallory") as mallory:

            async def foreign() -> str:
                return f"{desk.url}{(await mallory.call('dashboard.link', {}))['path']}"

            page = await desk.visitor()
            await page.goto(await foreign())
            await expect(status(page, "as “mallory”")).to_be_visible()
            assert await page.context.cookies() == []
            await page.get_by_role("button", name="Do not log in").click()
            await page.get_by_label("Token").fill(desk.token())
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Now")).to_be_visible()
            before = await page.context.cookies()
            await page.goto(await foreign())
            await expect(status(page, "logged in as “local”")).to_be_visible()
            await page.get_by_role("button", name="Stay “local”").click()
            await expect(page.get_by_role("heading", name="Now")).to_be_visible()
            assert await page.context.cookies() == before
            # The button is disabled for less time than there may be between two looks at it.
            await page.clock.install()
            await page.clock.pause_at(datetime.now() + timedelta(hours=1))
            await page.goto(await foreign())
            # A click that was meant for something else comes too early.
            agree = page.get_by_role("button", name="Log in as “mallory”")
            await expect(agree).to_be_disabled()
            await page.clock.resume()
            await agree.click()
            await expect(page.get_by_role("heading", name="Now")).to_be_visible()
            assert await page.context.cookies() != before


@pytest.mark.hostile
@pytest.mark.covers("CP-3")
async def test_the_page_says_as_whom_one_acts_before_and_after_the_login_on_a_phone(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, HELLO) as desk:
        name = "mallory-" + "w" * 92
        async with desk.client() as client:
            made: Any = await client.call("tokens.create", {"name": name})
        url = f"ws{desk.url.removeprefix('http')}"
        async with GatewayClient(url, made["token"], client_id="mallory") as mallory:
            path = (await mallory.call("dashboard.link", {}))["path"]
        page = await desk.visitor(PHONE)
        await page.goto(f"{desk.url}{path}")
        agree = page.get_by_role("button", name=f"Log in as “{name}”")
        await expect(agree).to_be_enabled()
        assert await page.evaluate(FITS)
        await page.keyboard.press("Shift+Tab")
        await expect(agree).to_be_focused()
        await page.keyboard.press("Enter")
        who = page.get_by_role("banner").get_by_text(name)
        await expect(who).to_have_text(f"Logged in as {name}")
        await expect(who).to_have_attribute("title", f"Logged in as “{name}”")
        assert await page.evaluate(FITS)
        # The link of the own machine takes the session over, and the page shows that.
        await page.goto(await link(desk))
        await page.get_by_role("button", name="Log in as “local”").click()
        await expect(page.get_by_role("banner")).to_contain_text("Logged in as local")


@pytest.mark.covers("CP-2")
async def test_a_token_opens_the_view_of_the_address_until_the_logout(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, HELLO) as desk:
        page = await desk.visitor()
        await page.goto(f"{desk.url}/#/approvals")
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(status(page, "not accepted")).to_be_visible()
        await page.get_by_label("Token").fill(desk.token())
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
        other = await desk.tab(page.context)
        await other.goto(desk.url)
        await expect(other.get_by_role("heading", name="Now")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(status(page, "logged out")).to_be_visible()
        # The other tab follows, without a click.
        await expect(other.get_by_label("Token")).to_be_visible()


@pytest.mark.covers("CP-2")
async def test_a_revoked_token_ends_the_page(browser: Browser, tmp_path: Path) -> None:
    async with control(browser, tmp_path, HELLO) as desk:
        words = ("--state", str(desk.state), "--config", "clawmode.json5")
        tell = shared_zygote()
        done = tell.run("gateway", "token", "add", "phone", *words, cwd=tmp_path)
        page = await desk.person(token=done.stdout.strip())
        tell.run("gateway", "token", "revoke", "phone", *words, cwd=tmp_path)
        await expect(status(page, "session has ended")).to_be_visible()
