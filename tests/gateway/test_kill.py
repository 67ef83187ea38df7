"""SIGKILL and a start after it: nothing is lost, nothing is done twice.

Under load, `tests/ordeals/test_gateway_kill.py` does that.
"""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_driver import serving
from tests.support.gateway_driver import Started
from tests.support.waiting import until

from clawmode.cron.job import Job
from clawmode.cron.jobs import Jobs
from clawmode.rpc.client import GatewayClient
from clawmode.testing import ScriptRequest, Turn, call

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

WAREHOUSE = '''
import anyio
from clawmode import tool

@tool(effect="write")
async def buy(n: int) -> str:
    """Buy something; it takes for ever."""
    with open("bought.txt", "a") as file:
        file.write(f"{n}\\n")
    await anyio.sleep_forever()
    return f"bought {n}"

TOOLS = [buy]
'''


def buyer(request: ScriptRequest) -> Turn:
    """Buys once, by a tool of its own, and says what came of it."""
    if "call-1" not in request.results:
        return Turn(call("buy", {"n": 1}, id="call-1"))
    return Turn(f"It came to: {request.results['call-1']}")


@pytest.mark.covers("P-3")
async def test_a_cron_turn_whose_gateway_is_killed_is_resumed_and_not_restarted(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.py").write_text(WAREHOUSE)
    bought, state = tmp_path / "bought.txt", tmp_path / "state"
    jobs, now = Jobs(state), datetime.now(UTC)
    at = (now + timedelta(seconds=3)).isoformat(timespec="milliseconds")
    # A clock that stands still: however long the file takes, the moment must not be in the past.
    with closing(Jobs(state, clock=now.timestamp)) as adding:
        await adding.add(Job(id="tea", message="Buy tea.", at=at))
    with serving(buyer) as server:
        configure(tmp_path, server.url, code_mode=False)
        with Started(tmp_path, state, "--tools", "shop:TOOLS") as first:
            await until(lambda: bought.exists() and bought.read_text(), 45)
            first.kill()
        with jobs._transaction() as database:  # a minute goes by
            database.execute("update states set lease = 0")
        with Started(tmp_path, state, "--tools", "shop:TOOLS"):
            await until(lambda: has_ended(jobs), 45)
            sessions = await _sessions(state)
        found = await jobs.get("tea")
    jobs.close()
    assert bought.read_text() == "1\n"
    assert [run.status for run in found.runs] == ["ok"]
    assert (found.due, found.running) == (None, False)
    assert sessions == [f"agent:main:cron:tea:run:{found.runs[0].id}"]


async def has_ended(jobs: Jobs) -> bool:
    return (await jobs.get("tea")).runs[0].status != "running"


async def _sessions(state: Path) -> list[str]:
    async with GatewayClient.local(state) as client:
        found: Any = await client.call("sessions.list", {"limit": 100})
    return [it["key"] for it in found["sessions"]]


def configure(folder: Path, url: str, *, code_mode: bool = True, **more: Any) -> None:
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use elsewhere"}
    whole = {
        "agents": {"defaults": {"model": "mine/small"}},
        "models": {"providers": {"mine": provider}},
        "tools": {"codeMode": code_mode, "approve": "always"},
        **more,
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole))
