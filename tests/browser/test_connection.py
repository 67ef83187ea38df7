"""The connection of the page: lost in the middle of things, and what was missed."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, expect
from tests.support.browser_driver import come_back, control, network, obey, status
from tests.support.browser_shop import TOOLS, ordered, stock
from tests.support.conversations import Held, go_on
from tests.support.waiting import until

from clawmode.testing import Turn, pause

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ASK: dict[str, Any] = {
    "tools": {"codeMode": {"enabled": True, "timeoutMs": 2000}, "approve": "ask"}
}

LISTEN = """async () => {
  const { src } = document.querySelector("script");
  const { connection } = await import(src.replace("app.js", "connection.js"));
  window.seen = [];
  connection.on("chat", ({ state, text }, _, at) => seen.push({ state, text, at }));
  connection.keep("sessions.subscribe", { sessionKeys: ["*"] });
}"""


@pytest.mark.covers("CP-7")
async def test_an_answer_that_streams_while_the_network_fails_arrives_whole_and_once(
    browser: Browser, tmp_path: Path
) -> None:
    words = [f"word{number} " for number in range(40)]
    answer: list[Any] = [part for word in words[:10] for part in (word, pause(0.2))]
    answer += [Held(0.0, "cut"), *(part for word in words[10:] for part in (word, pause(0.05)))]
    go_on.discard("cut")
    async with control(browser, tmp_path, [Turn(*answer)]) as desk, network(desk) as wire:
        page = await desk.log_in(await desk.visitor(), url=wire.url)
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        await page.evaluate(LISTEN)
        await desk.send("a", "Hello.")
        await until(lambda: page.evaluate("seen.length > 3"), 20)
        wire.cut()
        await expect(page.get_by_role("status").first).to_contain_text("connection was lost")
        heard = await page.evaluate("seen.length")
        go_on.add("cut")
        wire.up = True
        await until(lambda: page.evaluate("seen.at(-1)?.state === 'final'"), 20)
        seen: Any = await page.evaluate("seen")
        assert len(seen) > heard
        assert seen[-1]["text"].split() == "".join(words).split()
        numbers = [each["at"] for each in seen]
        assert numbers == sorted(set(numbers))
        texts = [each["text"].rstrip() for each in seen]
        assert texts == sorted(texts, key=len)
        await expect(page.get_by_role("status").first).not_to_contain_text("connection")


@pytest.mark.covers("CP-7")
async def test_questions_that_came_and_went_meanwhile_are_shown_after_a_reconnection(
    browser: Browser, tmp_path: Path
) -> None:
    stock(tmp_path)
    async with control(browser, tmp_path, obey, *TOOLS, **ASK) as desk, network(desk) as wire:
        page = await desk.log_in(await desk.visitor(), "#/approvals", url=wire.url)
        await desk.send("first", "return await tools.order({item: 'first'})")
        cards = page.get_by_role("article")
        await expect(cards).to_have_count(1)
        wire.cut()
        await desk.send("second", "return await tools.order({item: 'second'})")
        async with desk.client() as client:
            await until(lambda: _pending(client, 2), 20)
            found: Any = await client.call("plugin.approval.list", {})
            first = next(it for it in found["approvals"] if it["input"]["item"] == "first")
            await client.call("plugin.approval.resolve", {"id": first["id"], "decision": "deny"})
        await expect(page.get_by_role("status").first).to_contain_text("connection was lost")
        wire.up = True
        await come_back(page)
        await expect(cards).to_have_count(2)
        await expect(cards.first).to_contain_text("Denied by local")
        await cards.last.get_by_role("button", name="Allow once").click()
        await until(lambda: ordered(tmp_path) == ["'second' 1"], 20)


async def _pending(client: Any, count: int) -> bool:
    return len((await client.call("plugin.approval.list", {}))["approvals"]) == count


@pytest.mark.covers("CP-7")
async def test_after_a_restart_of_the_gateway_the_page_stays_logged_in_and_shows_the_question(
    browser: Browser, tmp_path: Path
) -> None:
    stock(tmp_path)
    async with control(browser, tmp_path, obey, *TOOLS, **ASK) as desk:
        page = await desk.person("#/approvals")
        await desk.send("a", "return await tools.order({item: 'tea'})")
        await expect(page.get_by_role("article")).to_have_count(1)
        old = desk.token()
        await anyio.to_thread.run_sync(desk.restart)
        assert desk.token() != old
        async with desk.client() as client:
            await until(lambda: _pending(client, 1), 20)
        await come_back(page)
        # The question is asked again, under another id: the old card says that it is over.
        await expect(page.get_by_role("article")).to_have_count(2)
        await page.get_by_role("button", name="Allow once").click()
        await until(lambda: ordered(tmp_path) == ["'tea' 1"], 20)
        await expect(page.get_by_text("gateway was updated")).to_have_count(0)


@pytest.mark.covers("CP-7")
async def test_a_page_of_an_earlier_version_says_so_after_a_restart(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, [Turn("Hello.")]) as desk:
        page = await desk.person()
        await page.route("**/session", lambda route: route.fulfill(json={"page": "another"}))
        await anyio.to_thread.run_sync(desk.restart)
        await page.get_by_role("button", name="Load it").click()
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()


@pytest.mark.covers("CP-7")
async def test_a_message_without_a_connection_is_shown_and_is_sent_once(
    browser: Browser, tmp_path: Path
) -> None:
    script = [Turn("Hello."), Turn("I am here.")]
    async with control(browser, tmp_path, script) as desk, network(desk) as wire:
        await desk.send("a", "Hi.")
        page = await desk.log_in(await desk.visitor(), "#/chat/agent%3Amain%3Aa", url=wire.url)
        await expect(page.get_by_text("Hello.", exact=True)).to_be_visible()
        wire.cut()
        await expect(page.get_by_text("connection was lost")).to_be_visible()
        await page.get_by_label("Message", exact=True).fill("Are you there?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".entry.pending")).to_contain_text("Are you there?")
        wire.up = True
        await come_back(page)
        await expect(page.get_by_text("I am here.", exact=True)).to_be_visible()
        await expect(page.get_by_text("Are you there?", exact=True)).to_have_count(1)


@pytest.mark.covers("CP-2")
async def test_a_logout_that_does_not_reach_the_gateway_says_so_and_can_be_repeated(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, [Turn("Hello.")]) as desk, network(desk) as wire:
        page = await desk.log_in(await desk.visitor(), url=wire.url)
        wire.cut()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("alert")).to_contain_text("still logged in")
        await expect(page.get_by_role("link", name="Operation")).to_be_in_viewport(ratio=0.9)
        wire.up = True
        await come_back(page)
        await expect(page.get_by_text("connection was lost")).to_have_count(0)
        await page.get_by_role("button", name="Log out").click()
        await expect(status(page, "You are logged out")).to_be_visible()


@pytest.mark.covers("CP-2")
async def test_a_logout_that_a_hanging_gateway_never_answers_ends_with_an_error(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, [Turn("Hello.")]) as desk:
        page = await desk.person()
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        await page.route("**/logout", lambda route: None)
        await page.clock.install()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("button", name="Log out")).to_be_disabled()
        await page.clock.fast_forward(10_000)
        await expect(page.get_by_role("alert")).to_contain_text("still logged in")
        await page.unroute("**/logout")
        await page.get_by_role("button", name="Log out").click()
        await expect(status(page, "You are logged out")).to_be_visible()


RACE = (Path(__file__).parent / "races.js").read_text()


@pytest.mark.hostile
@pytest.mark.covers("CP-7")
async def test_what_happens_while_the_page_reads_is_neither_lost_nor_taken_back(
    browser: Browser, tmp_path: Path
) -> None:
    async with control(browser, tmp_path, [Turn("Hello.")]) as desk:
        page = await desk.person()
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        found: Any = await page.evaluate(RACE)
        assert found["questions"] == {"old": "bob", "new": "waits"}
        lists = ["exec.approval.list", "input.list", "plugin.approval.list"]
        assert [each for each in found["again"] if each in lists] == lists
        assert found["tree"] == ["completed"]
        assert (found["early"], found["late"]) == (0, 1)
