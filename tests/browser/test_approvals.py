"""Questions on the page: the exact call, answers of several people, forms, hostile words."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, Page, expect
from tests.support.browser_driver import PHONE, Desk, control, obey
from tests.support.browser_shop import TOOLS, ordered, stock
from tests.support.waiting import until

from clawmode.rpc.tokens import Tokens

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ASK: dict[str, Any] = {
    "tools": {"codeMode": {"enabled": True, "timeoutMs": 2000}, "approve": "ask"}
}
TEA = "return await tools.order({item: 'tea', count: 2})"


def asking(browser: Browser, folder: Path) -> Any:
    """A gateway whose calls need approval."""
    stock(folder)
    return control(browser, folder, obey, *TOOLS, **ASK)


async def parked(desk: Desk) -> None:
    """Waits until a program is parked."""

    async def is_parked() -> bool:
        async with desk.client() as client:
            return bool((await client.call("system.figures", {}))["parked"])

    await until(is_parked, 20)


async def workers(desk: Desk) -> list[int]:
    """The processes of the workers, when none of them is just being started."""

    async def started() -> tuple[list[int]] | None:
        async with desk.client() as client:
            figures: Any = await client.call("system.figures", {})
        found = [worker["id"] for worker in figures["workers"]]
        return (found,) if all(found) else None

    (found,) = await until(started)
    return found


@pytest.mark.covers("CP-5")
async def test_a_call_is_answered_while_its_program_is_parked_and_its_worker_is_dead(
    browser: Browser, tmp_path: Path
) -> None:
    async with asking(browser, tmp_path) as desk:
        page = await desk.person("#/now")
        await desk.send("tea", TEA)
        await expect(page.get_by_role("link", name="Approvals 1 pending")).to_be_visible()
        await parked(desk)
        for pid in await workers(desk):
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        await page.get_by_role("link", name="Approvals").click()
        card = page.get_by_role("article", name="Run order?")
        await expect(card.get_by_label("Arguments")).to_have_text(
            re.compile(r'"item": "tea",\s+"count": 2')
        )
        await card.get_by_role("button", name="Allow once").click()
        await expect(card).to_contain_text("Allowed once by local")
        await until(lambda: ordered(tmp_path) == ["'tea' 2"], 20)
        await page.get_by_role("link", name="Now").click()
        turn = page.get_by_role("treeitem").first
        await expect(turn).to_have_attribute("data-state", "completed")
        assert ordered(tmp_path) == ["'tea' 2"]


@pytest.mark.covers("CP-5")
async def test_the_first_of_two_answers_counts_and_both_see_who_gave_it(
    browser: Browser, tmp_path: Path
) -> None:
    async with asking(browser, tmp_path) as desk:
        tokens = Tokens(desk.state)
        people = [
            await desk.person("#/approvals", token=tokens.add(name)) for name in ("ann", "bob")
        ]
        await desk.send("tea", TEA)
        cards = [page.get_by_role("article", name="Run order?") for page in people]
        buttons = [
            cards[0].get_by_role("button", name="Allow once"),
            cards[1].get_by_role("button", name="Deny"),
        ]
        for button in buttons:
            await expect(button).to_be_enabled()
        async with anyio.create_task_group() as tasks:
            for button in buttons:
                tasks.start_soon(button.evaluate, "it => it.click()")
        texts = []
        for card in cards:
            await expect(card.locator(".outcome")).to_be_visible()
            texts.append(await card.locator(".outcome").inner_text())
        assert texts[0] == texts[1]
        assert texts[0] in ("Allowed once by ann", "Denied by bob")
        # Who comes later sees it too.
        late = await desk.person("#/approvals")
        await expect(late.get_by_role("row", name=re.compile("order"))).to_contain_text(texts[0])
        allowed = texts[0].startswith("Allowed")
        await until(lambda: len(ordered(tmp_path)) == (1 if allowed else 0), 20)


@pytest.mark.covers("CP-5")
async def test_siblings_are_one_list_that_is_answered_one_by_one_and_all_at_once(
    browser: Browser, tmp_path: Path
) -> None:
    async with asking(browser, tmp_path) as desk:
        page = await desk.person("#/approvals", size=PHONE)
        items = "['tea', 'milk', 'salt'].map((item) => tools.order({item}))"
        await desk.send("many", f"return await Promise.allSettled({items})")
        card = page.get_by_role("article", name="3 calls of one program")
        await card.get_by_role("listitem").filter(has_text="milk").get_by_title("Deny").click()
        await expect(card).to_contain_text("Denied by local")
        await expect(card).to_contain_text("2 of 3 wait")
        await card.get_by_role("button", name="Allow all 2 once").click()
        await expect(card.get_by_text("Allowed once")).to_have_count(2)
        await expect(page.get_by_role("link", name="Approvals", exact=True)).to_be_visible()
        await until(lambda: sorted(ordered(tmp_path)) == ["'salt' 1", "'tea' 1"], 20)


@pytest.mark.covers("CP-5")
async def test_always_covers_the_next_call_and_a_form_fills_in_what_a_tool_asks_for(
    browser: Browser, tmp_path: Path
) -> None:
    async with asking(browser, tmp_path) as desk:
        page = await desk.person("#/approvals")
        await desk.send(
            "a", "await tools.order({item: 'a'}); return await tools.order({item: 'b'})"
        )
        await page.get_by_role("button", name="Allow always").click()
        await until(lambda: len(ordered(tmp_path)) == 2, 20)
        await desk.send("b", "return await tools.address({})")
        form = page.get_by_role("article", name="A tool asks for input")
        await expect(form).to_contain_text("Where to?")
        await form.get_by_role("button", name="Send").click()
        await expect(form.get_by_role("alert")).to_contain_text("Name is required")
        await form.get_by_label("Name").fill("Ann")
        await form.get_by_label("Express").check()
        await form.get_by_label("Country").select_option("fr")
        await form.get_by_role("button", name="Send").click()
        await expect(form).to_contain_text("Answered by local")
        await until(lambda: len(ordered(tmp_path)) == 3, 20)
        assert eval(ordered(tmp_path)[2]) == {
            "name": "Ann",
            "parcels": 1,
            "express": True,
            "country": "fr",
        }


@pytest.mark.covers("CP-5")
async def test_a_question_notifies_a_person_who_looks_elsewhere_after_a_click(
    browser: Browser, tmp_path: Path
) -> None:
    async with asking(browser, tmp_path) as desk:
        page = await desk.visitor()
        await page.add_init_script(
            "window.told = []; document.hasFocus = () => false;"
            "window.Notification = class { constructor(title, {body}) { told.push([title, body]) }"
            " static permission = 'default';"
            " static async requestPermission() { return (this.permission = 'granted') } };"
        )
        await desk.log_in(page, "#/approvals")
        await desk.send("first", TEA)
        await expect(page.get_by_role("article")).to_have_count(1)
        assert await page.evaluate("told") == []
        await page.get_by_role("button", name="Notify me in this browser").click()
        await expect(page.get_by_role("button", name="Notify me")).to_have_count(0)
        await desk.send("second", TEA)
        await expect(page.get_by_role("article")).to_have_count(2)
        told = await page.evaluate("told")
        assert [body for _, body in told] == ["openclaw:core:order"]
        await expect(page).to_have_title("(2) Approvals · clawmode")


HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    "\u202egnp.exe\u202c \u001b[31mred\u001b[0m \u200b \u2066x\u2069 ${1} {{x}}"
)


@pytest.mark.hostile
@pytest.mark.covers("CP-4")
async def test_hostile_words_stay_words(browser: Browser, tmp_path: Path) -> None:
    async with asking(browser, tmp_path) as desk:
        page = await desk.person("#/approvals", size=PHONE)
        quoted = "".join(f"\\u{ord(char):04x}" for char in HOSTILE)
        long = "'x'.repeat(1_000_000)"
        await desk.send("h", f"return await tools.order({{item: '{quoted}' + {long}}})")
        async with desk.client() as client:
            await client.call(
                "plugin.approval.request",
                {"title": HOSTILE[:100], "description": HOSTILE * 20, "idempotencyKey": "1"},
            )
        await expect(page.get_by_role("article")).to_have_count(2)
        await looks_harmless(page)
        card = page.get_by_role("article", name="Run order?")
        arguments = card.get_by_label("Arguments")
        await expect(arguments).to_contain_text("<script>window.hacked=1</script>")
        await expect(arguments).to_contain_text("\\u202egnp.exe\\u202c")
        assert len(await arguments.inner_text()) < 20_000
        await card.get_by_role("button", name=re.compile("more of 99")).click()
        assert len(await arguments.inner_text()) > 20_000
        await looks_harmless(page)
        await page.get_by_role("link", name="Now").click()
        await expect(page.get_by_role("treeitem").nth(1)).to_contain_text("exec")
        await looks_harmless(page)
        await page.get_by_role("treeitem").last.click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await looks_harmless(page)


ODD = (Path(__file__).parent / "odd.js").read_text()


@pytest.mark.hostile
@pytest.mark.covers("CP-4")
async def test_odd_values_of_strangers_break_no_view(browser: Browser, tmp_path: Path) -> None:
    async with control(browser, tmp_path, obey) as desk:
        page = await desk.person("#/approvals")
        await expect(page.get_by_text("No question waits.")).to_be_visible()
        assert await page.evaluate(ODD, '{"toString": 1, "valueOf": 1}') == 0
        await expect(page.get_by_role("article")).to_have_count(2)
        form = page.get_by_role("article", name="A tool asks for input")
        await expect(form.get_by_role("link")).to_have_count(0)
        await form.get_by_label("Proto").fill("kept")
        await form.get_by_role("button", name="Done").click()
        await until(
            lambda: page.evaluate('answers.some((it) => it.includes(\'"__proto__":"kept"\'))')
        )
        for view in ("constructor", "__proto__"):
            await page.goto(f"{desk.url}/#/{view}")
            await page.reload()
            await expect(page.get_by_text("There is no view of this name")).to_be_visible()


async def looks_harmless(page: Page) -> None:
    """No stranger's script ran, no mark hides or moves text, nothing is wider than the page."""
    found: Any = await page.evaluate(
        r"""() => ({
          hacked: window.hacked === 1,
          made: document.querySelectorAll("main img, main script, main iframe").length,
          marks: /[\u001b\u200b\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText),
          wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        })"""
    )
    assert found == {"hacked": False, "made": 0, "marks": False, "wide": 0}
