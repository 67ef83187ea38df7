"""The view of what runs: a live tree, by keyboard, at phone width, and with 10,000 nodes."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from tests.support.browser_driver import PHONE, control, obey, status
from tests.support.browser_shop import TOOLS, stock

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

ASK: dict[str, Any] = {
    "tools": {"codeMode": {"enabled": True, "timeoutMs": 2000}, "approve": "ask"}
}


@pytest.mark.covers("CP-1")
async def test_turns_programs_and_calls_are_a_live_tree(browser: Browser, tmp_path: Path) -> None:
    stock(tmp_path)
    async with control(browser, tmp_path, obey, *TOOLS, **ASK) as desk:
        page = await desk.person("#/now")
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        await desk.send(
            "a", "await tools.price({item: 'tea'}); return await tools.slow({seconds: 60})"
        )
        rows = page.get_by_role("treeitem")
        await expect(rows).to_have_count(4)
        turn, program, price, slow = (rows.nth(index) for index in range(4))
        await expect(price).to_have_attribute("data-state", "completed")
        await expect(slow).to_have_attribute("data-state", "running")
        assert [await row.get_attribute("aria-level") for row in (turn, program, price)] == list(
            "123"
        )
        # Durations tick without a message of the gateway.
        await expect(slow).to_contain_text(re.compile(r"[1-9] s"))
        await desk.send("b", "return await tools.order({item: 'milk'})")
        await expect(rows).to_have_count(7)
        asked = rows.filter(has_text="milk").last
        await expect(asked).to_contain_text(re.compile(r"waits for approval · 1\d min"))
        await asked.click()
        details = page.get_by_role("dialog")
        await expect(details).to_contain_text("Waits until")
        await page.keyboard.press("Escape")
        await expect(details).to_have_count(0)
        await page.get_by_label("Waiting").check()
        await expect(asked).to_be_visible()
        await expect(rows.get_by_text("price", exact=True)).to_have_count(0)
        await page.get_by_label("All").check()
        await rows.filter(has_text="tea").first.click()
        await details.get_by_role("button", name="Stop this turn").click()
        await expect(rows.last).to_have_attribute("data-state", "cancelled")
        await expect(page.locator(".figures")).to_contain_text(re.compile(r"Turns\s*1"))
        await expect(page.get_by_role("table")).to_contain_text("idle")


@pytest.mark.covers("CP-6")
async def test_everything_works_with_the_keyboard_alone_at_phone_width(
    browser: Browser, tmp_path: Path
) -> None:
    stock(tmp_path)
    async with control(browser, tmp_path, obey, *TOOLS, **ASK) as desk:
        page = await desk.visitor(PHONE)
        await page.goto(desk.url)
        await expect(page.get_by_label("Token")).to_be_focused()
        await page.keyboard.insert_text(desk.token())
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        await desk.send("a", "return await tools.order({item: 'tea'})")
        await expect(page.get_by_role("treeitem")).to_have_count(3)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await tab_to(page, "tree")
        for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
            await page.keyboard.press(key)
        await expect(page.get_by_role("treeitem")).to_have_count(2)
        for key in ("ArrowRight", "ArrowDown", "Enter"):
            await page.keyboard.press(key)
        await tab_to(page, "link", "Show the question")
        assert await sees_focus(page)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article")).to_be_visible()
        assert await fits(page)
        await tab_to(page, "button", "Allow once")
        assert await sees_focus(page)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article")).to_contain_text("Allowed once")


async def tab_to(page: Page, role: Any, name: str = "") -> None:
    """Presses Tab until an element has the focus."""
    target = page.get_by_role(role, name=name or None)
    await expect(target).to_be_enabled()
    for _ in range(30):
        if await target.evaluate("it => it === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {role} {name!r}")


async def sees_focus(page: Page) -> bool:
    return await page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'")


async def fits(page: Page) -> bool:
    return await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.covers("CP-6")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast_in_light_and_in_dark(
    browser: Browser, tmp_path: Path, scheme: Any
) -> None:
    stock(tmp_path)
    async with control(browser, tmp_path, obey, *TOOLS, **ASK) as desk:
        page = await desk.person("#/approvals", color_scheme=scheme)
        await desk.send("a", "return await tools.order({item: 'tea'})")
        await expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
        assert await page.evaluate(WORST_CONTRAST) >= 4.5
        await page.get_by_role("link", name="Now").click()
        await expect(page.get_by_role("treeitem")).to_have_count(3)
        assert await page.evaluate(WORST_CONTRAST) >= 4.5


WORST_CONTRAST = r"""() => {
  const numbers = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = numbers(color).map((it) => linear(it / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let it = node; it; it = it.parentElement) {
      const color = getComputedStyle(it).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  const walker = document.createTreeWalker(document.getElementById("app"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest(":disabled, .visually-hidden")) continue;
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    const both = [light(getComputedStyle(node).color), light(behind(node))];
    worst = Math.min(worst, (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05));
  }
  return worst;
}"""


@pytest.mark.ordeal
@pytest.mark.covers("CP-6")
@pytest.mark.timeout(300)
async def test_ten_thousand_nodes_stay_usable(browser: Browser, tmp_path: Path) -> None:
    stock(tmp_path)
    fast: dict[str, Any] = {
        "tools": {"codeMode": {"enabled": True, "timeoutMs": 60_000}, "approve": "always"}
    }
    async with control(browser, tmp_path, obey, *TOOLS, **fast) as desk:
        page = await desk.person("#/now")
        await desk.send(
            "many",
            "const hundred = Array.from({length: 100}, (_, n) => n);"
            "for (const n of hundred)"
            "  await Promise.all(hundred.map((m) => tools.price({item: `${n}/${m}`})));"
            "await tools.slow({seconds: 60});",
        )
        entries = status(page, "10,003 entries")
        await expect(entries).to_have_text("10,003 entries", timeout=120_000)
        assert await page.locator(".row").count() < 80
        tree = page.get_by_role("tree")
        await tree.focus()
        took: Any = await page.evaluate(
            """async () => {
              const tree = document.querySelector("[role=tree]");
              const frame = () => new Promise((done) => requestAnimationFrame(done));
              const steps = [];
              for (let n = 1; n <= 50; n++) {
                const before = performance.now();
                tree.scrollTop = (tree.scrollHeight * n) / 50;
                await frame();
                await frame();
                steps.push(performance.now() - before);
              }
              return steps.sort((one, other) => one - other);
            }"""
        )
        print(f"10,003 nodes: a step of scrolling took {took[25]:.0f} ms, at most {took[-1]:.0f}")
        assert took[25] < 100
        await page.keyboard.press("End")
        await expect(page.get_by_role("treeitem").last).to_contain_text("slow")
        for key in ("Home", "ArrowDown", "ArrowLeft"):
            await page.keyboard.press(key)
        await expect(page.get_by_role("treeitem")).to_have_count(2)
        # A browser that comes later reads the tree in parts.
        late = await desk.person("#/now", size=PHONE)
        entries = status(late, "10,003 entries")
        await expect(entries).to_have_text("10,003 entries", timeout=30_000)
        assert await fits(late)
