"""A pool for each module: starting workers takes longer than most tests."""

from collections.abc import AsyncIterator

import pytest

from clawmode.sandbox.pool import Pool


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(size=2) as opened:
        yield opened
