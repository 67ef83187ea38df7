"""One client: numbered events, what it follows, and what becomes of one that does not read."""

import json

import anyio
import anyio.lowlevel
import pytest

from clawmode.gateway.clients import MAX_FRAMES, Client, EncodedEvent
from clawmode.rpc import protocol
from clawmode.rpc.protocol import ClientInfo, Hello
from clawmode.rpc.scopes import expand

pytestmark = pytest.mark.anyio


def client(*scopes: str) -> Client:
    return Client(
        Hello(min_protocol=1, max_protocol=9, client=ClientInfo(id="test")),
        "me",
        expand(scopes or ("operator.read",)),
        token="",
    )


async def read(it: Client) -> list[dict[str, object]]:
    it.finish(1000, "")
    return [json.loads(frame) async for frame in it.frames()]


async def test_events_are_numbered_without_a_gap_for_each_client() -> None:
    reader, approver = client(), client("operator.approvals")
    for name in ("tick", "exec.approval.requested", "sessions.changed", "nonsense", "tick"):
        for each in (reader, approver):
            each.notify(EncodedEvent.of(name, {"n": 1}))
    told = await read(reader)
    assert [(it["event"], it["seq"]) for it in told] == [
        ("tick", 1),
        ("sessions.changed", 2),
        ("tick", 3),
    ]
    others = await read(approver)
    assert [it["event"] for it in others] == ["tick", "exec.approval.requested", "tick"]


async def test_a_client_hears_of_what_it_follows_and_of_what_it_began() -> None:
    it = client()
    it.following.add("agent:main:a")
    it.runs.add("r9")
    for key, run in (("agent:main:a", "r1"), ("agent:main:b", "r2"), ("agent:main:c", "r9")):
        it.notify(EncodedEvent.of("agent", {"run": run}, key, run))
    assert [frame["payload"] for frame in await read(it)] == [{"run": "r1"}, {"run": "r9"}]
    everything = client()
    everything.following.add("*")
    everything.notify(EncodedEvent.of("agent", {}, "agent:main:b", "r2"))
    assert len(await read(everything)) == 1


async def test_a_client_that_does_not_read_is_dropped() -> None:
    it = client()
    for _ in range(MAX_FRAMES + 1):
        it.send("x")
    assert it.closing == (protocol.CLOSE_SLOW, "the client does not read fast enough")
    assert [frame async for frame in it.frames()] == []
    large = client()
    for _ in range(3):
        large.send("x" * (protocol.MAX_BUFFERED // 2))
    assert large.closing is not None
    assert large.describe()["buffered"] == 0


async def test_what_waits_is_sent_before_the_end() -> None:
    it = client()
    it.send("last words")
    it.finish(1012, "restart")
    it.finish(1000, "")
    it.send("too late")
    assert [frame async for frame in it.frames()] == ["last words"]
    assert it.closing == (1012, "restart")


async def test_frames_are_sent_as_they_come() -> None:
    it = client()
    seen: list[str] = []

    async def reader() -> None:
        seen.extend([frame async for frame in it.frames()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        for number in range(3):
            await anyio.lowlevel.checkpoint()
            it.send(str(number))
        it.finish(1000, "")
    assert seen == ["0", "1", "2"]
