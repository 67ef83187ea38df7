"""The view Tools: the catalog as a model reads it, the search, and programs that a person runs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from tests.support.browser_driver import Desk, control
from tests.support.conversations import PRICES, SHOP, model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
async def desk(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "shop.py").write_text(SHOP)
    async with control(browser, folder, model, "--tools", "shop:TOOLS") as made:
        yield made


@pytest.mark.covers("CP-23")
async def test_the_catalog_is_searched_by_the_ranker_of_programs_and_shows_declarations(
    desk: Desk,
) -> None:
    page = await desk.person("#/tools")
    catalog = page.get_by_label("Tools", exact=True)
    await expect(catalog.get_by_text("tools.price", exact=True)).to_be_visible()
    await page.get_by_label("Search the catalog").fill("item that is bought for good")
    async with desk.client() as client:
        given = {"query": "item that is bought for good", "limit": 50}
        found: Any = await client.call("tools.search", given)
    names = [hit["name"] for hit in found["hits"]]
    assert sorted(names) == ["order", "price"]
    await expect(page.get_by_text("2 hits, best first")).to_be_visible()
    rows = catalog.get_by_role("listitem")
    for row, name in enumerate(names):
        await expect(rows.nth(row)).to_contain_text(f"tools.{name}")
    rows = rows.filter(has_text="tools.price")
    await rows.first.click()
    await expect(page.get_by_role("heading", name="tools.price")).to_be_visible()
    declaration = page.get_by_label("Declaration", exact=True)
    await expect(declaration).to_contain_text("item: string")
    await page.get_by_role("link", name="Use in a program").click()
    await expect(page.get_by_label("Program", exact=True)).to_have_value(
        "return await tools.price({ });"
    )
    await page.get_by_role("link", name="What the model reads").click()
    await expect(page.locator(".reading").first).to_contain_text("tools.price")


@pytest.mark.covers("CP-24")
async def test_a_program_runs_against_the_catalog(desk: Desk) -> None:
    page = await desk.person("#/tools/run")
    editor = page.get_by_label("Program", exact=True)
    await editor.fill(PRICES)
    await page.keyboard.press("Control+Enter")
    result = page.get_by_label("Result of the program")
    await expect(result.get_by_text('"coffee": 5')).to_be_visible()
    await expect(result.get_by_text("looked up 2")).to_be_visible()
    await expect(result.get_by_text("2 calls")).to_be_visible()
    await editor.fill('throw new Error("no luck");')
    await page.get_by_role("button", name="Run").click()
    await expect(result.get_by_text("no luck")).to_be_visible()
    await expect(result.get_by_text("2 calls")).to_be_hidden()


@pytest.mark.covers("CP-24")
async def test_a_program_that_needs_approval_asks_beside_the_editor(desk: Desk) -> None:
    page = await desk.person("#/tools/run")
    await page.get_by_label("Program", exact=True).fill(
        'return await tools.order({ item: "tea", count: 3 });'
    )
    await page.get_by_role("button", name="Run").click()
    question = page.get_by_role("article", name="Run order?")
    await expect(question).to_contain_text('"count": 3')
    await question.get_by_role("button", name="Allow once").click()
    await expect(page.get_by_label("Result of the program")).to_contain_text("3 tea")
    await page.get_by_role("button", name="Run").click()
    await question.get_by_role("button", name="Deny").click()
    await expect(page.get_by_label("Result of the program").locator(".bad").first).to_be_visible()


TOO_EARLY = """async () => {
  const { src } = document.querySelector("script");
  const { connection } = await import(src.replace("app.js", "connection.js"));
  const request = connection.request.bind(connection);
  let isFirst = true;
  connection.request = (method, ...given) => {
    if (method !== "codemode.runs" || !isFirst) return request(method, ...given);
    isFirst = false;
    return Promise.resolve({ cells: [] });
  };
}"""


@pytest.mark.covers("CP-24")
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_program_that_never_ends_is_stopped(desk: Desk, is_known: bool) -> None:
    """Also by a person who is so quick that the gateway does not know the program yet."""
    page = await desk.person("#/tools/run")
    if not is_known:
        await page.evaluate(TOO_EARLY)
    await page.get_by_label("Program", exact=True).fill(
        "await new Promise((done) => setTimeout(done, 1e7));"
    )
    await page.get_by_role("button", name="Run").click()
    await page.get_by_role("button", name="Stop").click()
    await expect(
        page.get_by_label("Result of the program").get_by_text("The program was aborted.")
    ).to_be_visible()
