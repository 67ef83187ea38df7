"""The view Sessions: the list, the search, the transcript, and what can be done to a session."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.support.browser_driver import Desk, control
from tests.support.conversations import SHOP, model, said, talk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "shop.py").write_text(SHOP)
    async with control(browser, folder, model, "--tools", "shop:TOOLS") as made:
        yield made


@pytest.mark.covers("CP-20")
async def test_sessions_are_found_and_a_transcript_shows_a_program_with_its_calls(
    desk: Desk,
) -> None:
    await talk(desk, "drinks", "prices please", title="What drinks cost")
    await talk(desk, "other", "hello", title="Something else")
    page = await desk.person("#/sessions")
    rows = page.get_by_label("Sessions", exact=True).get_by_role("listitem")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Search sessions").fill("drinks")
    await expect(rows).to_have_count(1)
    await rows.first.click()
    program = page.get_by_role("region", name="Call of exec")
    await expect(program.locator(".code .t-keyword").first).to_have_text("const")
    calls = program.get_by_label("Calls of the program").get_by_role("listitem")
    await expect(calls).to_have_count(2)
    await expect(calls.first).to_contain_text("price")
    await expect(program.get_by_text("looked up 2")).to_be_visible()
    await expect(program.get_by_text('"coffee": 5')).to_be_visible()
    await expect(page.locator(".facts .tokens")).to_contain_text("in ·")
    await expect(said(page, "Done: prices please")).to_be_visible()
    about = await page.locator(".entry.assistant .who").last.bounding_box()
    assert about is not None
    assert about["height"] < 30, "name, time, model and tokens are in one line"
    await page.get_by_label("Search sessions").fill("nothing has this")
    await expect(page.get_by_text("No session matches")).to_be_visible()


@pytest.mark.covers("CP-20")
async def test_a_program_with_many_calls_is_windowed_and_all_of_them_can_be_read(
    desk: Desk,
) -> None:
    await talk(desk, "many", "many calls")
    page = await desk.person("#/sessions/agent%3Amain%3Amany")
    program = page.get_by_role("region", name="Call of exec")
    more = program.get_by_role("button", name="Show all 230 calls")
    await more.click()
    await expect(more).to_be_hidden()
    calls = program.get_by_label("Calls of the program")
    await calls.focus()
    await page.keyboard.press("End")
    await expect(calls.locator("[aria-posinset='230']")).to_be_visible()
    assert await calls.get_by_role("listitem").count() < 60


@pytest.mark.covers("CP-21")
async def test_a_session_is_made_written_to_steered_and_stopped(desk: Desk) -> None:
    page = await desk.person("#/sessions")
    await page.get_by_role("button", name="New session").click()
    await page.get_by_label("Title (optional)").fill("Made in a browser")
    await page.get_by_role("button", name="Create").click()
    await page.get_by_role("link", name="Transcript").click()
    await expect(page.get_by_role("heading", name="Made in a browser")).to_be_visible()
    await page.get_by_label("Message").fill("long story")
    await page.keyboard.press("Enter")
    await expect(page.locator(".streaming")).to_contain_text("step 2")
    await page.get_by_label("Message").fill("also this")
    await page.get_by_role("button", name="Steer").click()
    await expect(page.get_by_text("Passed to the running turn.")).to_be_visible()
    await page.get_by_role("group", name="Actions").get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Turn ended: aborted")).to_be_visible()
    await expect(page.get_by_text("Working…")).to_be_hidden()


@pytest.mark.covers("CP-21")
async def test_a_new_conversation_begins_under_the_same_key(desk: Desk) -> None:
    key = await talk(desk, "again", "first words")
    page = await desk.person(f"#/sessions/{key.replace(':', '%3A')}")
    await expect(said(page, "Done: first words")).to_be_visible()
    await page.get_by_role("button", name="New conversation").click()
    await page.get_by_role("dialog").get_by_role("button", name="New conversation").click()
    await expect(page.get_by_text("This session is empty")).to_be_visible()


@pytest.mark.covers("CP-21")
async def test_a_trajectory_is_exported_and_downloaded(desk: Desk, tmp_path: Path) -> None:
    await talk(desk, "kept", "prices to keep")
    page = await desk.person("#/sessions/agent%3Amain%3Akept")
    await page.get_by_role("button", name="Export").click()
    async with page.expect_download() as started:
        await page.get_by_role("button", name="Save events.jsonl").click()
    download = await started.value
    await download.save_as(tmp_path / "kept.jsonl")
    lines = (tmp_path / "kept.jsonl").read_text("utf-8").splitlines()
    assert len([json.loads(line) for line in lines]) > 3
    assert any("tools.price" in line for line in lines)
