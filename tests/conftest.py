"""What every test relies on: one backend, and an environment without surprises."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> Iterator[None]:
    """No key and no provider of the machine reaches a test."""
    saved = dict(os.environ)
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.startswith("CLAWMODE_SNAPSHOT"):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(saved)
