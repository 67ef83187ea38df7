"""The official conformance suite against both sides: our MCP client, and `clawmode mcp --http`.

Every scenario that a revision of the protocol demands is run. The tables below say which scenarios
cannot pass, and why; a scenario of the tables that passes fails the test, so they stay true.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.cli_driver import command_line
from tests.support.fleet.outside import listening

pytestmark = [pytest.mark.ordeal, pytest.mark.anyio, pytest.mark.timeout(600)]

REVISIONS = ("2025-11-25", "2026-07-28")
CLIENT = Path(__file__).parents[1] / "support" / "conformance_client.py"
SECONDS = 90  # for a scenario that takes three, on a busy machine
TOKEN = "a-token-of-the-conformance-tests"

NO_FEATURE = "clawmode offers two tools, and neither resources, prompts nor completions"
OWN_TOOL = "the scenario calls a tool that only a server made for the suite has"
EXTENSION = "an optional extension that clawmode does not implement"

CLIENT_FAILS = {
    "auth/enterprise-managed-authorization": EXTENSION,
    "auth/dpop": EXTENSION,
    "auth/dpop-nonce": EXTENSION,
    "auth/wif-jwt-bearer": EXTENSION,
    "sep-2640-*": EXTENSION,
}
SERVER_FAILS = {
    "completion-complete": NO_FEATURE,
    "resources-*": NO_FEATURE,
    "prompts-*": NO_FEATURE,
    "tools-call-*": OWN_TOOL,
    "elicitation-*": OWN_TOOL,
    "json-schema-2020-12": OWN_TOOL,
    "http-custom-header-server-validation": OWN_TOOL,
    "input-required-result-*": OWN_TOOL,
    "tasks-*": OWN_TOOL,
    "sep-2640-*": EXTENSION,
}
SERVER_PASSES_ALL_THE_SAME = {
    *("input-required-result-missing-input-response", "input-required-result-validate-input"),
    *("input-required-result-unsupported-methods", "input-required-result-ignore-extra-params"),
    "tasks-status-notifications",
}
SERVER_CHECKS = {
    "caching": {
        "PromptsListCachingHints": NO_FEATURE,
        "ResourcesListCachingHints": NO_FEATURE,
        "ResourcesTemplatesListCachingHints": NO_FEATURE,
        "ResourcesReadCachingHints": NO_FEATURE,
    },
}


def scenarios(suite: list[str], revision: str, kind: str) -> list[str]:
    """The names of the scenarios that a revision demands of a `Client` or a `Server`."""
    listed = subprocess.run(
        [*suite, "list", "--requirements", revision],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout
    part = re.search(rf"^{kind} scenarios.*?(?:\n\n|\Z)", listed, re.DOTALL | re.MULTILINE)
    assert part, listed
    found = re.findall(r"^  - (\S+)", part[0], re.MULTILINE)
    assert len(found) > 15, listed
    return found


def read_checks(folder: Path) -> list[dict[str, Any]]:
    """The checks of the one scenario that was run."""
    (report,) = folder.rglob("checks.json")
    return json.loads(report.read_text("utf-8"))


async def run(suite: list[str], *arguments: str, folder: Path) -> set[str]:
    """Runs one scenario, and returns the names of the checks that failed."""
    options = ["--force", "--output-dir", str(folder), "--timeout", str(SECONDS * 1000)]
    with anyio.fail_after(SECONDS + 30):
        done = await anyio.run_process([*suite, *arguments, *options], check=False)
    checks = await anyio.to_thread.run_sync(read_checks, folder)
    assert checks, done.stdout.decode()
    return {
        check["name"]
        for check in checks
        # A check that needs a tool of the suite's own is marked as one that cannot be made.
        if check["status"] == "FAILURE" and not check.get("details", {}).get("untestable")
    }


def surprises(
    outcomes: dict[str, set[str]], known: dict[str, str], passing: set[str]
) -> dict[str, set[str]]:
    """The scenarios whose outcome is not the known one, with the checks that failed."""
    wrong: dict[str, set[str]] = {}
    for name, failed in outcomes.items():
        pattern = next((each for each in known if fnmatch(name, each)), None)
        expected = pattern is not None and name not in passing
        if expected != bool(failed):
            wrong[name] = failed or {"it passes: remove it from the table"}
    return wrong


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.covers("MX-1")
async def test_our_client_passes_the_suite(
    revision: str, conformance: list[str], tmp_path: Path
) -> None:
    command = f"{sys.executable} {CLIENT}"
    outcomes: dict[str, set[str]] = {}
    for number, name in enumerate(scenarios(conformance, revision, "Client")):
        given = ("client", "--command", command, "--scenario", name, "--spec-version", revision)
        outcomes[name] = await run(conformance, *given, folder=tmp_path / str(number))
    assert surprises(outcomes, CLIENT_FAILS, set()) == {}


@asynccontextmanager
async def face() -> AsyncIterator[str]:
    """The address of `clawmode mcp --http`, behind a proxy that adds the token to each request."""
    process = await asyncio.create_subprocess_exec(
        *command_line("mcp", "--http", "127.0.0.1:0", "--approve", "always"),
        env=os.environ | {"CLAWMODE_MCP_TOKEN": TOKEN},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    port = 0
    while not port:
        line = (await asyncio.wait_for(process.stderr.readline(), SECONDS)).decode()
        assert line, "the face has not started"
        port = int(found[1]) if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)) else 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, onward = await asyncio.open_connection("127.0.0.1", port)

        async def ask() -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: *(\d+)", head)
                    first, _, rest = head.partition(b"\r\n")
                    onward.write(
                        first + b"\r\nauthorization: Bearer " + TOKEN.encode() + b"\r\n" + rest
                    )
                    onward.write(await reader.readexactly(int(length[1]) if length else 0))
                    await onward.drain()
            onward.close()

        async def answer() -> None:
            with suppress(ConnectionError):  # the suite hangs up in the middle of some answers
                while data := await back.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        await asyncio.gather(ask(), answer())

    errors = asyncio.create_task(process.stderr.read())
    try:
        async with listening(serve) as entrance:
            yield f"http://127.0.0.1:{entrance}/mcp"
    finally:
        process.terminate()
        await process.wait()
        await errors


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.covers("MX-1")
async def test_our_server_fails_no_scenario_that_applies(
    revision: str, conformance: list[str], tmp_path: Path
) -> None:
    outcomes: dict[str, set[str]] = {}
    async with face() as url:
        for number, name in enumerate(scenarios(conformance, revision, "Server")):
            given = ("server", "--url", url, "--scenario", name, "--spec-version", revision)
            failed = await run(conformance, *given, folder=tmp_path / str(number))
            outcomes[name] = failed - {*SERVER_CHECKS.get(name, {})}
    assert surprises(outcomes, SERVER_FAILS, SERVER_PASSES_ALL_THE_SAME) == {}
