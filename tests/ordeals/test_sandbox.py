"""Crowds of cells in a pool of workers, at length."""

import pytest
from tests.sandbox.test_chaos import no_leaks, suffer

pytestmark = pytest.mark.anyio

__all__ = ["no_leaks"]  # a fixture


@pytest.mark.parametrize("seed", range(2, 8))
async def test_a_large_crowd_of_cells_loses_no_worker(seed: int, no_leaks: None) -> None:
    await suffer(seed, cells=400)
