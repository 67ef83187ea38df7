"""One Chromium for all tests of the control page."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright
from tests.support.browser_driver import CHROMIUM, FLAGS, REQUIRED


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    """The browser of the system. Without one, the tests are skipped, unless they are required."""
    if not CHROMIUM:
        text = "there is no chromium on PATH: install Debian's package `chromium`"
        if REQUIRED:
            pytest.fail(text)
        pytest.skip(text)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        await launched.close()
