"""What happens now and what was missed: `events.since`, `runs.*`, `system.figures`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway_driver import wired
from tests.support.gateway_inside import Inside, echo, events, inside
from tests.support.waiting import Gate, until

from clawmode.agent.events import AgentEvent
from clawmode.code_mode.stores import CellInfo
from clawmode.gateway import event_log, run_feed, run_tree
from clawmode.gateway.clients import EncodedEvent
from clawmode.gateway.event_log import EventLog
from clawmode.gateway.run_nodes import preview_of, title_of
from clawmode.gateway.run_tree import RunTree
from clawmode.rpc.protocol import MAX_BUFFERED
from clawmode.testing import ScriptRequest, Turn, call
from clawmode.text import KnownSecrets
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

CODE_MODE = {"codeMode": True}


def program(source: str) -> Turn:
    return Turn(call("exec", {"code": source}))


def wait_for_it(request: ScriptRequest) -> Turn:
    """Waits for the program that the last result left waiting."""
    return Turn(call("wait", {"runId": request.last_result()["runId"]}))


# ---- Events that were missed ----


def frames(client: Any) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in client._frames]


@pytest.mark.covers("GP-1")
async def test_a_client_gets_what_it_has_missed_once_and_in_order(tmp_path: Path) -> None:
    async with inside(tmp_path, ["Hello!", "Again!"]) as it:
        always = it.client("operator.read", name="always")
        always.following.add("*")
        it.gateway.leave(always)
        hello: Any = it.gateway.join(always, ())
        known = hello["events"]
        assert known["epoch"] == it.gateway.log.epoch
        run = await it.call("agent", message="go", sessionKey="tea")
        await it.call("agent.wait", runId=run["runId"])
        await until(lambda: [one for one in events(always, "chat") if one["state"] == "final"])
        late = it.client("operator.read", name="late")
        late.following.add("*")
        missed = await it.call("events.since", late, **known)
        assert (missed["reset"], missed["more"]) == (False, False)
        live = [frame for frame in frames(always) if frame["type"] == "event"]
        kept = {
            frame["at"]: frame for frame in live if "delta" not in frame["payload"].get("data", {})
        }
        assert {each["at"] for each in missed["events"]} <= kept.keys()
        for each in missed["events"]:
            frame = kept[each["at"]]
            assert (frame["event"], frame["payload"]) == (each["event"], each["payload"])
        numbers = [each["at"] for each in missed["events"]]
        assert numbers == sorted(set(numbers))
        said = [each["payload"] for each in missed["events"] if each["event"] == "chat"]
        assert [each["state"] for each in said] == ["final"]
        assert said[0]["text"] == "Hello!"
        again = await it.call("events.since", late, epoch=missed["epoch"], at=missed["at"])
        assert (again["events"], again["at"]) == ([], it.gateway.log.at)


@pytest.mark.covers("GP-2")
async def test_missed_events_are_those_that_the_client_may_see(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        since = it.gateway.log.position
        await it.call("plugin.approval.request", title="May I?")
        it.gateway.broadcast("session.message", {"text": "secret of b"}, "agent:main:b")
        it.gateway.broadcast("sessions.changed", {"sessionKey": "agent:main:b"})
        reader, approver = it.client("operator.read"), it.client("operator.approvals")
        nobody = it.client()

        async def names(client: Any) -> list[str]:
            return [
                each["event"] for each in (await it.call("events.since", client, **since))["events"]
            ]

        assert await names(reader) == ["sessions.changed"]
        reader.following.add("agent:main:b")
        assert await names(reader) == ["session.message", "sessions.changed"]
        assert await names(approver) == ["plugin.approval.requested"]
        assert await names(nobody) == []


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"epoch": "another", "at": 0}, "ok"),
        ({"at": 9_007_199_254_740_991}, "ok"),
        ({"at": -1}, "INVALID_REQUEST at"),
        ({"at": 1.5}, "INVALID_REQUEST at"),
        ({"at": "1"}, "INVALID_REQUEST at"),
        ({"at": True}, "INVALID_REQUEST at"),
        ({"at": 10**30}, "INVALID_REQUEST at"),
        ({"at": None}, "INVALID_REQUEST at"),
        ({"epoch": "x" * 1_000_000, "at": 1}, "INVALID_REQUEST epoch"),
        ({"epoch": {}, "at": 1}, "INVALID_REQUEST epoch"),
        ({"at": 0, "stream": "*"}, "INVALID_REQUEST stream"),
    ],
)
async def test_an_invented_position_is_a_reset_or_an_error(
    tmp_path: Path, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        given = {"epoch": it.gateway.log.epoch, **given}
        assert await it.code("events.since", **given) == code
        if code == "ok":
            answer = await it.call("events.since", **given)
            assert answer == {"reset": True, **it.gateway.log.position}


def event(text: str, name: str = "sessions.changed") -> EncodedEvent:
    return EncodedEvent.of(name, {"text": text})


def everything(_: EncodedEvent) -> bool:
    return True


@pytest.mark.hostile
@pytest.mark.covers("GP-3")
def test_the_log_stays_small_and_never_hides_a_loss() -> None:
    log = EventLog()
    for number in range(3 * event_log.MAX_EVENTS):
        log.add(event(f"{number}"))
    assert len(log._kept) == event_log.MAX_EVENTS
    assert log.since(log.epoch, 1, everything)["reset"] is True
    oldest = log.at - event_log.MAX_EVENTS
    answer: Any = log.since(log.epoch, oldest, everything)
    assert answer["events"][0]["at"] == oldest + 1
    assert log.since(log.epoch, oldest - 1, everything)["reset"] is True
    for _ in range(100):
        log.add(event("🦞" * 100_000))
        assert log._bytes <= event_log.MAX_BYTES
    before = log.at
    log.add(event("x" * event_log.MAX_EVENT_BYTES))
    assert (len(log._kept), log._bytes) == (0, 0)
    assert log.since(log.epoch, before, everything)["reset"] is True
    assert log.since(log.epoch, log.at, everything)["events"] == []


def test_all_parts_of_a_long_answer_are_read_one_after_the_other() -> None:
    log = EventLog()
    for number in range(2 * event_log.MAX_ANSWER_EVENTS + 1):
        log.add(event(f"{number}"))
    for _ in range(3):
        log.add(event("x" * (event_log.MAX_ANSWER_BYTES // 3)))
    at, read = 0, list[Any]()
    while True:
        answer: Any = log.since(log.epoch, at, everything)
        assert len(json.dumps(answer)) < 2 * event_log.MAX_ANSWER_BYTES
        read += answer["events"]
        at = answer["at"]
        if not answer["more"]:
            break
    assert [each["at"] for each in read] == list(range(1, log.at + 1))


def test_a_text_that_grows_is_kept_once() -> None:
    log = EventLog()
    for number in range(10_000):
        log.add(event("x" * number, "chat"), slot="chat r1")
    assert len(log._kept) == 1
    log.add(event("done", "chat"), slot="chat r1", last=True)
    log.add(event("part", "agent"), keep=False)
    answer: Any = log.since(log.epoch, 0, everything)
    assert [each["payload"]["text"] for each in answer["events"]] == ["done"]
    assert log._slots == {}


async def test_python_clients_ignore_the_new_numbers(tmp_path: Path) -> None:
    async with wired(tmp_path, ["Hello!"]) as it, it.connect() as client:
        result = await client.agent("go")
        assert result.text == "Hello!"
        assert client.hello["events"] == {"epoch": it.gateway.log.epoch, "at": 0}
        position: Any = client.hello["events"]
        missed = await client.call("events.since", position)
        assert missed["reset"] is False


# ---- The tree ----


async def tree(it: Inside, **given: Any) -> list[dict[str, Any]]:
    return (await it.call("runs.tree", **given))["nodes"]


async def tree_when(it: Inside, good: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """The tree, when one of its nodes is as it should be."""

    async def look() -> list[dict[str, Any]] | None:
        nodes = await tree(it)
        return nodes if any(map(good, nodes)) else None

    return await until(look)


@pytest.mark.covers("GP-4")
async def test_a_turn_its_program_and_its_calls_are_a_tree(tmp_path: Path) -> None:
    gate = Gate(effect="read")
    source = (
        "await tools.echo({n: 1, password: 'hunter2-hunter2'}); return await tools.slow({m: 2})"
    )
    script = [program(source), Turn("done")]
    async with inside(tmp_path, script, tools=[gate.tool, echo()], rules=CODE_MODE) as it:
        run = await it.call("agent", message="Look\nat this", sessionKey="tea")
        await gate.entered.wait()
        turn, cell, first, second = await tree_when(
            it, lambda node: node.get("inputPreview") == '{"m": 2}'
        )
        assert (turn["kind"], turn["id"], turn["parent"]) == ("turn", run["runId"], None)
        assert (turn["title"], turn["state"]) == ("Look at this", "running")
        assert (turn["sessionKey"], turn["agentId"]) == ("agent:main:tea", "main")
        assert (cell["kind"], cell["parent"], cell["state"]) == ("program", turn["id"], "running")
        (listed,) = (await it.call("codemode.runs"))["cells"]
        assert cell["cellId"] == listed["cellId"]
        assert cell["inputPreview"].startswith("await tools.echo(")
        assert "hunter2" not in json.dumps([turn, cell, first, second])
        assert {first["parent"], second["parent"]} == {cell["id"]}
        assert (first["title"], first["state"]) == ("echo", "completed")
        assert first["durationMs"] >= 0
        assert (second["title"], second["state"], second["toolId"]) == (
            "slow",
            "running",
            gate.tool.id,
        )
        assert await tree(it, sessionKey="coffee") == []
        assert len(await tree(it, sessionKey="tea")) == 4
        gate.open.set()
        await it.call("agent.wait", runId=run["runId"])
        over = await tree_when(it, lambda node: node["id"] == turn["id"] and "endedAt" in node)
        assert {node["state"] for node in over} == {"completed"}


@pytest.mark.covers("GP-5")
async def test_a_program_that_waits_for_a_person_says_so_and_until_when(tmp_path: Path) -> None:
    source = "return await tools.echo({n: 1})"
    rules = {**CODE_MODE, "approve": "ask"}
    script = [program(source), wait_for_it, Turn("done")]
    async with inside(tmp_path, script, tools=[echo()], rules=rules) as it:
        run = await it.call("agent", message="go")
        nodes = await tree_when(it, lambda node: node.get("questionId"))
        (asked,) = (await it.call("plugin.approval.list"))["approvals"]
        waiting = nodes[-1]
        assert (waiting["state"], waiting["waitsFor"]) == ("waiting", "approval")
        assert (waiting["questionId"], waiting["until"]) == (asked["id"], asked["expiresAtMs"])
        nodes = await tree_when(it, lambda node: node["state"] == "parked")
        cell = next(node for node in nodes if node["kind"] == "program")
        assert cell["waitsFor"] == "approval"
        assert cell["expiresAt"] > cell["startedAt"]
        assert cell["cellId"] == asked["callId"].partition(":")[0]
        await it.call("plugin.approval.resolve", id=asked["id"], decision="allow-once")
        await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
        over = await tree(it)
        assert {node["state"] for node in over} == {"completed"}
        assert not any("waitsFor" in node or "expiresAt" in node for node in over)


async def test_a_program_that_sleeps_says_when_it_wakes_up(tmp_path: Path) -> None:
    source = "await new Promise((done) => setTimeout(done, 3_600_000)); return 1"
    seen: list[dict[str, Any]] = []

    def look(request: ScriptRequest) -> Turn:
        seen.extend(node.to_json() for node in it.gateway.feed.tree.nodes.values())
        return Turn("done")

    rules = {"codeMode": {"enabled": True, "timeoutMs": 300}}
    async with inside(tmp_path, [program(source), look], rules=rules, tools=[echo()]) as it:
        run = await it.call("agent", message="go")
        await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
        cell = seen[1]
        assert (cell["state"], cell["waitsFor"]) == ("parked", "timer")
        assert 3_500_000 < cell["until"] - cell["startedAt"] < 3_700_000
        cell = (await tree(it))[1]
        assert (cell["state"], "until" in cell) == ("cancelled", False)


def changed(client: Any) -> list[dict[str, Any]]:
    return [node for each in events(client, "runs.changed") for node in each.get("nodes", [])]


@pytest.mark.covers("GP-6")
async def test_followers_get_changes_and_others_do_not(tmp_path: Path) -> None:
    source = "return await Promise.all([1, 2, 3].map((n) => tools.echo({n})))"
    script = [program(source), Turn("done")]
    async with inside(tmp_path, script, tools=[echo()], rules=CODE_MODE) as it:
        follower, other = it.client("operator.read"), it.client("operator.read")
        assert await it.call("runs.follow", follower, on=True) == {"following": True}
        other.following.add("*")
        run = await it.call("agent", message="go")
        await it.call("agent.wait", runId=run["runId"])
        await until(
            lambda: any("endedAt" in node for node in changed(follower) if node["kind"] == "turn")
        )
        known = {node["id"]: node for node in changed(follower)}
        assert [known[node["id"]] for node in await tree(it)] == await tree(it)
        assert [node["kind"] for node in known.values()].count("call") == 3
        assert changed(other) == []
        assert await it.call("runs.follow", follower, on=False) == {"following": False}


async def test_turns_that_wait_for_their_place_are_seen_and_ended_ones_disappear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(effect="read")
    script = [Turn(call("slow", {})), Turn("one"), Turn("two")]
    async with inside(tmp_path, script, tools=[gate.tool]) as it:
        follower = it.client("operator.read")
        await it.call("runs.follow", follower)
        first = await it.call("agent", message="one", sessionKey="tea")
        await gate.entered.wait()
        second = await it.call("agent", message="two", sessionKey="tea")
        nodes = {node["id"]: node for node in await tree(it)}
        assert (nodes[second["runId"]]["state"], nodes[second["runId"]]["waitsFor"]) == (
            "queued",
            "place",
        )
        (direct,) = (node for node in nodes.values() if node["kind"] == "call")
        assert (direct["parent"], direct["title"]) == (first["runId"], "slow")
        gate.open.set()
        for run in (first, second):
            await it.call("agent.wait", runId=run["runId"])
        monkeypatch.setattr(run_tree, "KEEP_SECONDS", -1.0)
        it.gateway.feed.tree.tidy()
        assert await tree(it) == []
        await until(
            lambda: [it for each in events(follower, "runs.changed") for it in each["removed"]]
        )


@pytest.mark.covers("GP-5")
async def test_programs_that_an_earlier_process_has_parked_are_in_the_tree(tmp_path: Path) -> None:
    from tests.gateway.test_methods_codemode import parked

    async with inside(tmp_path) as it:
        store = it.gateway.host.runtime.store
        await store.park(parked("cm_0", "run0"), "x", 10, again=False)
        await it.gateway.feed.restore(store)
        (node,) = await tree(it)
        assert (node["state"], node["cellId"], node["runId"]) == ("parked", "cm_0", "run0")
        assert node["expiresAt"] > node["startedAt"]


@pytest.mark.covers("GP-5", "DU-12")
async def test_the_tree_and_the_figures_do_not_read_all_parked_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gateway.test_methods_codemode import parked

    monkeypatch.setattr("clawmode.gateway.run_feed.MAX_NODES", 3)
    async with inside(tmp_path) as it:
        store = it.gateway.host.runtime.store
        for number in range(5):
            await store.park(parked(f"cm_{number}", f"run{number}"), "x", 10, again=False)
        cells, read = store.cells, list[CellInfo]()

        async def listing(*args: Any, **options: Any) -> list[CellInfo]:
            found = await cells(*args, **options)
            read.extend(found)
            return found

        monkeypatch.setattr(store, "cells", listing)
        await it.gateway.feed.restore(store)
        assert [node["cellId"] for node in await tree(it)] == ["cm_0", "cm_1", "cm_2"]
        assert it.gateway.feed.tree.left_out == 2
        assert (await it.call("system.figures"))["parked"] == 5
        assert len(read) == 3


# ---- Hostile trees ----


def tool_event(seq: int, **data: Any) -> AgentEvent:
    return AgentEvent(run_id="r", seq=seq, stream="tool", data=data, session_key="agent:main:x")


@pytest.mark.hostile
@pytest.mark.covers("GP-7")
async def test_a_tree_with_ten_thousand_calls_is_read_in_pages(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        tree = it.gateway.feed.tree
        tree.start_program("r", "agent:main:x", "r/exec", "many()")
        for number in range(10_000):
            data = {"callId": f"cm_x:{number}", "name": "core:echo", "parentId": "exec"}
            tree.take(tool_event(number, phase="start", **data))
            tree.take(tool_event(number, phase="end", state="completed", ms=1, **data))
        after, found = 0, list[dict[str, Any]]()
        while True:
            page = await it.call("runs.tree", after=after, limit=2_000)
            assert len(json.dumps(page)) < 1_000_000
            found += page["nodes"]
            if page["next"] is None:
                break
            after = page["next"]
        assert len(found) == len({node["id"] for node in found}) == 10_001
        assert {node["parent"] for node in found[1:]} == {"r/exec"}


@pytest.mark.hostile
@pytest.mark.covers("GP-7")
def test_the_tree_stays_small_and_counts_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_tree, "MAX_NODES", 100)
    tree = RunTree(lambda run_id: None)
    tree.start_program("r", "agent:main:x", "r/exec", "x" * 1_000_000)
    for number in range(1_000):
        name = "n" * 100_000 if number == 999 else "echo"
        data = {"callId": f"{number}" * (1_000 if number == 999 else 1), "name": name}
        tree.take(tool_event(number, phase="start", parentId="exec", **data))
        if number < 950:
            tree.take(tool_event(number, phase="end", parentId="exec", isError=False, **data))
        if number % 100 == 0:
            tree.take_changes()
    assert len(tree.nodes) == 100
    assert tree.nodes["r/exec"].left_out == 901
    assert max(len(json.dumps(node.to_json())) for node in tree.nodes.values()) < 2_000
    for number in range(1_000, 1_200):
        data = {"callId": str(number), "name": "echo"}
        tree.take(tool_event(number, phase="start", parentId="exec", **data))
    assert len(tree.nodes) == 100
    assert tree.left_out == 151
    assert len(tree._ended_calls) <= 200


@pytest.mark.hostile
def test_a_model_that_uses_the_id_of_a_call_again_makes_two_nodes() -> None:
    tree = RunTree(lambda run_id: None)
    for _ in range(3):
        for phase in ("start", "end"):
            tree.take(tool_event(1, phase=phase, callId="same~1", name="echo", args={}))
    assert [node.state for node in tree.nodes.values()] == ["completed"] * 3


@pytest.mark.hostile
def test_a_tree_that_nobody_follows_forgets_the_runs_that_have_ended() -> None:
    asked: list[str] = []
    tree = RunTree(asked.append)
    for number in range(1_000):
        for phase in ("start", "end"):
            data: dict[str, Any] = {"phase": phase, "callId": "1", "name": "echo", "args": {}}
            tree.take(replace(tool_event(number, **data), run_id=f"r{number}"))
        tree.end_run(f"r{number}")
        tree.forget_changes()
    asked.clear()
    tree.look()
    assert len(asked) <= run_tree.MAX_ENDED


@pytest.mark.hostile
def test_a_secret_that_is_known_is_redacted_before_a_preview_is_cut() -> None:
    secret = "correct horse battery staple"
    hide = KnownSecrets([secret]).text
    for length in range(90, 210):
        shown = (
            title_of("x" * length + secret, hide),
            preview_of("x" * length + secret, hide),
            preview_of({"text": "x" * length + secret}, hide),
        )
        assert "correct" not in " ".join(shown)
    assert "abcd" not in preview_of({"text": "abcd" * 300}, KnownSecrets(["abcd" * 300]).text)


@pytest.mark.hostile
def test_a_preview_shows_no_half_of_a_login_that_was_cut_before_its_end() -> None:
    login = "postgres://admin:correct-horse-battery@db.example/orders"
    key = "-----BEGIN PRIVATE KEY-----" + "k" * 1_900 + "-----END PRIVATE KEY-----"
    for length in range(60):
        # The key becomes short, so that the preview shows where the text was cut.
        shown = preview_of(f"{key}{' ' * length}{login}"), title_of(f"{key}{' ' * length}{login}")
        assert "admin" not in " ".join(shown)
    value: JsonObject = {"url": login, "database_for_all_orders_password": "correct", "n": "x"}
    for _ in range(6):
        value = {"a": value, "b": "x" * 500}
        assert "correct" not in preview_of(value)


@pytest.mark.hostile
def test_a_preview_shows_no_secrets_and_no_control_characters() -> None:
    shown = preview_of({"text": "a\x1b[31m\u202e\n" * 10_000, "token": "sk-1234567890abcdef"})
    assert len(shown) <= 200
    assert shown.isprintable()
    assert "sk-123" not in preview_of("fetch('x', 'sk-1234567890abcdef')")
    assert "1234567890" not in preview_of({"token": "sk-1234567890abcdef"})


@pytest.mark.hostile
@pytest.mark.covers("GP-8")
async def test_a_slow_follower_misses_changes_and_is_told_to_read_the_tree(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        slow, quick = it.client("operator.read"), it.client("operator.read")
        for client in (slow, quick):
            await it.call("runs.follow", client)
        slow.send(json.dumps({"text": "x" * run_feed.MAX_BEHIND}))
        feed = it.gateway.feed
        for number in range(2_000):
            feed.tree.start_program("r", "agent:main:x", f"r/{number}", "x" * 200)
            feed.flush()
        assert len(changed(quick)) == 2_000
        assert changed(slow) == []
        assert slow.buffered < 2 * run_feed.MAX_BEHIND < MAX_BUFFERED
        slow._frames.clear()
        slow._buffered = 0
        feed.flush()
        assert events(slow, "runs.changed") == [{"reset": True}]
        feed.tree.start_program("r", "agent:main:x", "r/new", "x")
        feed.flush()
        assert [node["id"] for node in changed(slow)] == ["r/new"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1_000_000}, "limit"),
        ({"after": -1}, "after"),
        ({"after": "x"}, "after"),
        ({"sessionKey": "a b"}, "sessionKey"),
        ({"sessionKey": "x" * 10_000}, "sessionKey"),
        ({"all": True}, "all"),
    ],
)
async def test_wrong_parameters_of_the_tree_are_refused(
    tmp_path: Path, given: dict[str, Any], field: str
) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("runs.tree", **given) == f"INVALID_REQUEST {field}"
        assert await it.code("runs.follow", on="yes") == "INVALID_REQUEST on"
        assert (await it.call("runs.tree", after=2**53 - 1))["nodes"] == []


# ---- Figures ----


@pytest.mark.covers("GP-9")
async def test_the_figures_show_workers_queues_and_memory(tmp_path: Path) -> None:
    gate = Gate(effect="read")
    script = [program("return await tools.slow({})"), Turn("done")]
    async with inside(tmp_path, script, tools=[gate.tool], rules=CODE_MODE) as it:
        run = await it.call("agent", message="go")
        await gate.entered.wait()
        (cell,) = (await it.call("codemode.runs"))["cells"]
        figures = await it.call("system.figures", it.client("operator.read"))
        (worker,) = [each for each in figures["workers"] if each["cellId"] == cell["cellId"]]
        assert worker["state"] in ("holding", "busy")
        assert (worker["id"] > 0, worker["memoryBytes"] > 1 << 20, worker["cells"]) == (
            True,
            True,
            1,
        )
        assert figures["memoryBytes"] > 10 << 20
        assert figures["queue"] == {"cells": 0, "runs": 0, "messages": 0}
        assert (figures["running"], figures["questions"], figures["clients"]) == (1, 0, 2)
        gate.open.set()
        await it.call("agent.wait", runId=run["runId"])
        assert (await it.call("system.figures"))["parked"] == 0
