"""SIGKILL under load, and a start after it: nothing is lost, nothing is done twice."""

import json
import signal
from collections import Counter
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

ORDERS = 10

SHOP = '''
import os, time
from clawmode import tool

@tool(effect="write")
def buy(n: int) -> str:
    """Buy something; it takes a while."""
    with open("bought.txt", "a") as file:
        file.write(f"{n}\\n")
    time.sleep(0.3)
    return f"bought {n}"

TOOLS = [buy]
'''


def clerk(request: ScriptRequest) -> Turn:
    """Buys what is asked for, once, and says what came of it."""
    number = next(word for word in request.said.split() if word.isdigit())
    call_id = f"call-{number}"
    if call_id not in request.results:
        return Turn(call("exec", {"code": f"return tools.buy({{ n: {number} }})"}, id=call_id))
    return Turn(f"Order {number}: {str(request.results[call_id])[:40]}")


async def order(client: GatewayClient, number: int) -> str:
    given = {
        "message": f"order {number}",
        "sessionKey": f"order-{number}",
        "idempotencyKey": f"k{number}",
    }
    answer = await client.call("agent", given)
    return str(answer["runId"])


async def test_a_gateway_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    bought, state = tmp_path / "bought.txt", tmp_path / "state"
    with serving(clerk) as server:
        configure(tmp_path, server.url)
        with Started(tmp_path, state, "--tools", "shop:TOOLS") as first:
            async with GatewayClient.local(state) as client:
                before = [await order(client, number) for number in range(ORDERS)]
                await until(lambda: bought.exists() and len(bought.read_text().split()) >= 3, 45)
                first.process.send_signal(signal.SIGKILL)
                first.process.wait()
        with Started(tmp_path, state, "--tools", "shop:TOOLS"):
            async with GatewayClient.local(state) as client:
                after = [await order(client, number) for number in range(ORDERS)]
                ended = [await _end(client, run_id) for run_id in after]
                sessions = await client.call("sessions.list", {"limit": 100})
    assert after == before
    counted = Counter(bought.read_text().split())
    assert max(counted.values()) == 1, counted
    assert [it["status"] for it in ended] == ["ok"] * ORDERS
    found: Any = sessions["sessions"]
    assert {it["key"] for it in found} == {f"agent:main:order-{n}" for n in range(ORDERS)}
    # Calls that were under way are not made again: the model is told so.
    done = sum("bought" in json.dumps(it["result"]) for it in ended)
    assert done >= ORDERS - 8
    assert len(counted) >= done


WAREHOUSE = '''
import anyio
from clawmode import tool

@tool(effect="write")
async def buy(n: int) -> str:
    """Buy something; it takes for ever."""
    with open("bought.txt", "a") as file:
        file.write(f"{n}\\n")
    await anyio.sleep(60)
    return f"bought {n}"

TOOLS = [buy]
'''


def buyer(request: ScriptRequest) -> Turn:
    """Buys once, by a tool of its own, and says what came of it."""
    if "call-1" not in request.results:
        return Turn(call("buy", {"n": 1}, id="call-1"))
    return Turn(f"It came to: {request.results['call-1']}")


@pytest.mark.covers("P-3")
async def test_a_cron_turn_whose_gateway_is_killed_is_continued_and_not_begun_anew(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.py").write_text(WAREHOUSE)
    bought, state = tmp_path / "bought.txt", tmp_path / "state"
    at = datetime.now(UTC) + timedelta(seconds=1)
    jobs = Jobs(state)
    await jobs.add(Job(id="tea", message="Buy tea.", at=at.isoformat(timespec="seconds")))
    with serving(buyer) as server:
        configure(tmp_path, server.url, code_mode=False)
        with Started(tmp_path, state, "--tools", "shop:TOOLS") as first:
            await until(bought.exists, 45)
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


async def _end(client: GatewayClient, run_id: str) -> dict[str, Any]:
    return dict(await client.call("agent.wait", {"runId": run_id, "timeoutMs": 20_000}, timeout=25))


def configure(folder: Path, url: str, *, code_mode: bool = True, **more: Any) -> None:
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use elsewhere"}
    whole = {
        "agents": {"defaults": {"model": "mine/small"}},
        "models": {"providers": {"mine": provider}},
        "tools": {"codeMode": code_mode, "approve": "always"},
        **more,
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole))
