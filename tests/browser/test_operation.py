"""The view Operation: servers, jobs, plugins, the log, the configuration, tokens, the doctor."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.support.browser_driver import Desk, control
from tests.support.conversations import model, talk
from tests.support.plugin_material import plugin

from clawmode.rpc.tokens import Tokens

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

JOB = {"id": "morning", "cron": "0 8 * * *", "message": "What came in over night?"}
RAW_SERVER = str(Path(__file__).parents[1] / "support" / "raw_server.py")
SERVERS = {
    "good": {"command": sys.executable, "args": [RAW_SERVER]},
    "broken": {"command": sys.executable, "args": ["-c", "raise SystemExit('out of paper')"]},
}


@pytest.fixture(scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("operation")
    plugin(folder / "plugins" / "garden", description="Waters the garden.")
    plugin(folder / "plugins" / "desert", "raise OSError('no water')", name="desert")
    paths = {"load": {"paths": [str(folder / "plugins")]}}
    sections = {"cron": {"jobs": [JOB]}, "mcpServers": SERVERS, "plugins": paths}
    async with control(browser, folder, model, **sections) as made:
        yield made


@pytest.mark.covers("CP-25")
async def test_servers_show_whether_they_work_and_why_not(desk: Desk) -> None:
    await desk.connects("good")  # the page looks once in five seconds
    page = await desk.person("#/operation")
    good, broken = (page.locator(".card", has_text=name) for name in ("good", "broken"))
    await expect(good.get_by_text("ready", exact=True)).to_be_visible()
    await expect(good.get_by_text("34 tools")).to_be_visible()
    await expect(broken.locator(".bad")).to_be_visible(timeout=20_000)


@pytest.mark.covers("CP-25")
async def test_jobs_are_listed_and_run_when_asked(desk: Desk) -> None:
    page = await desk.person("#/operation/jobs")
    await expect(page.get_by_text("0 8 * * *")).to_be_visible()
    await page.get_by_role("button", name="Run now").click()
    await expect(page.get_by_text("The job morning has started.")).to_be_visible()


@pytest.mark.covers("CP-25")
async def test_plugins_are_listed_with_what_is_wrong_with_them(desk: Desk) -> None:
    page = await desk.person("#/operation/plugins")
    await expect(page.locator(".card", has_text="garden")).to_contain_text("Waters the garden.")
    await expect(page.locator(".card", has_text="desert")).to_contain_text("no water")


@pytest.mark.covers("CP-25")
async def test_the_log_is_followed_and_a_line_is_shown_whole(desk: Desk) -> None:
    page = await desk.person("#/operation/log")
    lines = page.get_by_label("Log lines")
    await expect(lines.get_by_text("the gateway is at")).to_be_visible()
    await talk(desk, "logged", "hello")
    await expect(lines.get_by_text("session agent:main:logged")).to_be_visible()
    await lines.get_by_text("session agent:main:logged").click()
    await expect(page.get_by_role("dialog")).to_contain_text("run.start")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.covers("CP-26")
async def test_an_error_of_the_configuration_is_shown_at_its_line(desk: Desk) -> None:
    file = desk.folder / "clawmode.json5"
    before = file.read_text("utf-8")
    page = await desk.person("#/operation/configuration")
    await expect(page.get_by_text("valid", exact=True)).to_be_visible()
    assert "of no use" not in await page.locator(".source").inner_text()
    wrong = json.loads(before) | {"gateway": {"port": "many"}}
    try:
        file.write_text(json.dumps(wrong, indent=2), "utf-8")
        await page.get_by_role("button", name="Read again").click()
        line = page.locator(".source-line.wrong")
        await expect(line).to_contain_text('"port": "many"')
        await expect(page.locator(".source-issue")).to_contain_text("port")
        await page.get_by_role("button", name="Line").click()
        await expect(line).to_be_focused()
        apply = page.get_by_role("button", name="Apply the file now")
        await expect(apply).to_have_attribute("aria-disabled", "true")
    finally:
        file.write_text(before, "utf-8")
    await page.get_by_role("button", name="Read again").click()
    await apply.click()
    await expect(page.get_by_text("Nothing has changed.")).to_be_visible()


@pytest.mark.covers("CP-26")
async def test_a_token_is_created_shown_once_and_revoked(desk: Desk) -> None:
    page = await desk.person("#/operation/tokens")
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Name of its owner").fill("berta")
    await page.get_by_role("button", name="Create").click()
    secret = await page.locator(".secret").inner_text()
    found = Tokens(desk.state).find(secret)
    assert found is not None
    assert (found.name, found.scopes) == ("berta", ("operator.read",))
    await page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
    card = page.locator(".card", has_text="berta")
    await expect(card).to_contain_text("operator.read")
    assert secret not in await page.content()
    await card.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(card).to_be_hidden()
    assert Tokens(desk.state).find(secret) is None


@pytest.mark.covers("CP-25")
async def test_the_doctor_says_what_it_found(desk: Desk) -> None:
    page = await desk.person("#/operation/doctor")
    await page.get_by_role("button", name="Examine").click()
    await expect(page.locator(".findings li").first).to_be_visible(timeout=45_000)
