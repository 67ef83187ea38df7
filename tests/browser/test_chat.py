"""The view Chat: words as they come, calls between them, and a connection that breaks."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, WebSocketRoute, expect
from tests.support.browser_driver import Desk, come_back, control
from tests.support.conversations import BEGINNING, REST, SHOP, go_on, model, quiet, said, talk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPj/HwADAgH/p9p6kAAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "shop.py").write_text(SHOP)
    async with control(browser, folder, model, "--tools", "shop:TOOLS") as made:
        yield made


async def chat(desk: Desk, name: str) -> Page:
    """A person in a new conversation."""
    key = await talk(desk, name)
    return await desk.person(f"#/chat/{key.replace(':', '%3A')}")


async def say(page: Page, words: str) -> None:
    await page.get_by_label("Message", exact=True).fill(words)
    await page.keyboard.press("Enter")


@pytest.mark.covers("CP-22")
async def test_words_are_shown_as_they_come_and_calls_between_them(desk: Desk) -> None:
    page = await chat(desk, "streaming")
    await expect(page.get_by_text("Nothing has been said yet")).to_be_visible()
    go_on.discard("stream slowly")
    await say(page, "stream slowly")
    growing = page.locator(".streaming")
    await expect(growing).to_contain_text("one two three")
    assert "fourteen" not in (await growing.text_content() or "")
    go_on.add("stream slowly")
    # For a moment, an answer may be in the transcript and among what streams.
    await expect(said(page, REST)).to_have_count(1)
    await expect(said(page, BEGINNING)).to_have_count(1)
    await expect(said(page, REST)).to_be_visible()
    await expect(growing).to_be_hidden()
    await say(page, "prices now")
    program = page.get_by_role("region", name="Call of exec")
    await expect(
        program.get_by_label("Calls of the program").get_by_role("listitem")
    ).to_have_count(2)
    await expect(said(page, "Done: prices now")).to_be_visible()


@pytest.mark.covers("CP-22")
async def test_a_chat_that_is_opened_in_mid_stream_shows_the_words_so_far(desk: Desk) -> None:
    key = await talk(desk, "joined")
    async with desk.client() as client:
        await client.call("chat.send", {"sessionKey": key, "message": "hold it"})
        page = await desk.person(f"#/chat/{key.replace(':', '%3A')}")
        await expect(page.locator(".streaming")).to_contain_text("I hold this")
        await client.call("sessions.abort", {"sessionKey": key})


@pytest.mark.covers("CP-22")
async def test_a_chat_that_is_opened_between_two_messages_shows_the_first_one_once(
    desk: Desk,
) -> None:
    page = await chat(desk, "between")
    await say(page, "think now")
    await expect(page.get_by_role("region", name="Call of exec")).to_contain_text("completed")
    await page.reload()
    await expect(page.get_by_role("region", name="Call of exec")).to_be_visible()
    await expect(said(page, "I look")).to_have_count(1)
    await page.get_by_role("button", name="Stop").click()


@pytest.mark.covers("CP-22")
async def test_a_person_stops_an_answer(desk: Desk) -> None:
    page = await chat(desk, "stopped")
    await say(page, "long story")
    await expect(page.locator(".streaming")).to_contain_text("step 1")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("Turn ended: aborted")).to_be_visible()


@pytest.mark.covers("CP-22")
async def test_a_reconnection_in_the_middle_of_an_answer_shows_what_was_missed(
    desk: Desk,
) -> None:
    """The words and the calls of the time without a connection; nothing is loaded anew."""
    sockets: list[WebSocketRoute] = []
    offline = False

    async def pass_on(socket: WebSocketRoute) -> None:
        if offline:
            await socket.close(code=1011)
        else:
            sockets.append(socket)
            socket.connect_to_server()

    key = await talk(desk, "broken")
    page = await desk.visitor()
    await page.route_web_socket("**/ws", pass_on)
    await desk.log_in(page, f"#/chat/{key.replace(':', '%3A')}")
    go_on.discard("stream it")
    await say(page, "stream it")
    await expect(page.locator(".streaming")).to_contain_text("one two three")
    offline = True
    await sockets[-1].close(code=1011)
    await expect(page.get_by_text("The connection was lost.")).to_be_visible()
    go_on.add("stream it")
    async with desk.client() as client:
        await client.call("chat.send", {"sessionKey": key, "message": "prices meanwhile"})
        await quiet(client, key)
    assert not await page.get_by_text("fourteen").is_visible()
    offline = False
    await come_back(page)
    await expect(said(page, REST)).to_have_count(1)
    await expect(said(page, BEGINNING)).to_have_count(1)
    await expect(said(page, REST)).to_be_visible()
    await expect(said(page, "Done: prices meanwhile")).to_be_visible()
    program = page.get_by_role("region", name="Call of exec")
    await expect(
        program.get_by_label("Calls of the program").get_by_role("listitem")
    ).to_have_count(2)


@pytest.mark.covers("CP-22")
async def test_images_are_sent_and_shown(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    page = await chat(desk, "images")
    await page.locator("input[type=file]").set_input_files(tmp_path / "pixel.png")
    await expect(page.locator(".attached img")).to_be_visible()
    await say(page, "look at this")
    await expect(said(page, "Done: look at this")).to_be_visible()
    await page.get_by_role("button", name="Show the image").click()
    await expect(page.locator(".entry.user:not(.pending) img.picture")).to_be_visible()
