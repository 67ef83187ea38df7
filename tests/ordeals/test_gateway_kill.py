"""A gateway that is killed again and again under load loses nothing and does nothing twice."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.test_kill import configure
from tests.support.command_driver import serving
from tests.support.gateway_driver import Started
from tests.support.waiting import until

from clawmode.rpc.client import GatewayClient
from clawmode.testing import ScriptRequest, Turn, call

pytestmark = pytest.mark.anyio

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


async def test_a_killed_gateway_resumes_its_runs_at_the_next_start(tmp_path: Path) -> None:
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
                ended = [await end(client, run_id) for run_id in after]
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


async def end(client: GatewayClient, run_id: str) -> dict[str, Any]:
    return dict(await client.call("agent.wait", {"runId": run_id, "timeoutMs": 20_000}, timeout=25))
