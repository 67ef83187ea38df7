"""`clawmode mcp` with `state: "postgresql://…"`: whose programs are whose, in real processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.postgres.test_state import KEY
from tests.support.face_driver import TOOLS, connected, new_token, read, served, stdio

from clawmode.code_mode.snapshots import KeyRing
from clawmode.postgres.cells import PostgresStore

pytestmark = pytest.mark.anyio

WAITS = "const x = 40; await yield_control(); return x + 2"


@pytest.fixture
def folder(tmp_path: Path, database: str) -> Path:
    """A folder with tools, and a configuration that names the database."""
    (tmp_path / "mine.py").write_text(TOOLS)
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text(KEY)
    settings = {"state": database, "postgres": {"keyFile": "key"}}
    (tmp_path / "clawmode.json5").write_text(json.dumps(settings))
    return tmp_path


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    return read(await client.call_tool(name, arguments))


async def owners(database: str) -> list[str]:
    """Returns the session keys of the programs in the database."""
    store = PostgresStore(database, keys=KeyRing.ephemeral())
    try:
        return [cell.scope.session_key for cell in await store.cells()]
    finally:
        store.close()


@pytest.mark.covers("PG-16", "MF-5")
async def test_a_program_over_stdio_belongs_to_the_configuration_and_the_state_folder(
    folder: Path, database: str
) -> None:
    given = ("--config", "clawmode.json5")
    async with stdio(folder, *given) as client:
        run_id = (await call(client, "exec", code=WAITS))["runId"]
    (owner,) = await owners(database)
    assert owner.startswith("mcp:stdio-")
    assert not (folder / "state" / "cells.sqlite").exists()
    async with stdio(folder, *given, "--state", "other") as client:
        assert (await call(client, "wait", runId=run_id))["status"] == "failed"
    async with stdio(folder, *given) as client:
        assert (await call(client, "wait", runId=run_id))["value"] == 42
    assert await owners(database) == []


@pytest.mark.covers("PG-16", "MF-5")
async def test_a_program_over_http_belongs_to_the_token_on_every_node(
    folder: Path, database: str
) -> None:
    other = new_token(folder, "other")
    given = ("--config", "clawmode.json5")
    async with served(folder, *given) as one, served(folder, *given) as two:
        async with connected(one) as client:
            run_id = (await call(client, "exec", code=WAITS))["runId"]
        async with connected(two, token=other) as client:
            assert (await call(client, "wait", runId=run_id))["status"] == "failed"
        async with connected(two) as client:
            assert (await call(client, "wait", runId=run_id))["value"] == 42
    assert not (folder / "state" / "mcp-clients").exists()
