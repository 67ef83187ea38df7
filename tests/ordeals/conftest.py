"""Marks every test of this folder as an ordeal, and gives it ten minutes."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.ordeal)
    item.add_marker(pytest.mark.timeout(600))
