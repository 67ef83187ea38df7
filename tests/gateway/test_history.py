"""Conversations in pages, the search for sessions, and what is behind a page that was cut."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway_inside import Inside, echo, events, inside

from clawmode.messages import AssistantMessage, Text, ToolCall, ToolMessage, Usage, UserMessage
from clawmode.sessions import pages
from clawmode.sessions.transcript import NestedState, open_session
from clawmode.testing import Turn, call

pytestmark = pytest.mark.anyio

CODE_MODE = {"codeMode": True}
STATES: tuple[NestedState, ...] = ("started", "completed")


async def read_all(it: Inside, limit: int, **given: Any) -> list[dict[str, Any]]:
    """All entries of a session, the newest first, page by page."""
    entries: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    while True:
        page = await it.call("sessions.transcript", **given, **before, limit=limit)
        assert len(page["entries"]) <= limit
        entries += page["entries"]
        if page["next"] is None:
            return entries
        before = {"before": page["next"]}


@pytest.mark.covers("GP-11")
async def test_a_page_has_programs_with_their_calls_output_and_tokens(tmp_path: Path) -> None:
    source = "text('so far'); await tools.echo({n: 1}); return await tools.echo({n: 2})"
    script = [Turn(call("exec", {"code": source})), Turn("All done.")]
    async with inside(tmp_path, script, tools=[echo()], rules=CODE_MODE) as it:
        run = await it.call("agent", message="Do it", sessionKey="tea")
        await it.call("agent.wait", runId=run["runId"])
        page = await it.call("sessions.transcript", it.client("operator.read"), sessionKey="tea")
        assert (page["sessionKey"], page["next"]) == ("agent:main:tea", None)
        end, answer, asked, told, start = page["entries"]
        assert (start["type"], start["phase"]) == ("run", "start")
        assert (end["type"], end["phase"], end["status"]) == ("run", "end", "ok")
        assert (told["role"], told["content"]) == ("user", [{"type": "text", "text": "Do it"}])
        assert answer["content"] == [{"type": "text", "text": "All done."}]
        assert set(answer["usage"]) == {"input", "output", "cacheRead", "cacheWrite"}
        (program,) = asked["calls"]
        assert (program["kind"], program["code"], program["state"]) == (
            "program",
            source,
            "completed",
        )
        assert program["result"]["output"] == [{"type": "text", "text": "so far"}]
        assert program["result"]["value"]["said"] == {"n": 2}
        assert program["nestedCount"] == 2
        assert [each["state"] for each in program["nested"]] == ["completed"] * 2
        assert all(each["ms"] >= 0 for each in program["nested"])
        assert await read_all(it, 1, sessionKey="tea") == page["entries"]


async def make_long(it: Inside, key: str, nested: int = 0, text: str = "x") -> None:
    """Writes a session with 50 turns of one call each; the last call has nested ones."""
    session = await it.gateway.host.runtime.sessions.resolve(key)
    async with open_session(session) as transcript:
        for number in range(50):
            run = f"run{number}"
            transcript.start_run(run, model="m", trigger="api", code_mode=True)
            transcript.message(run, UserMessage.of(f"question {number}"))
            made = ToolCall("same", "exec", {"code": f"return {number}"})
            asked = AssistantMessage(content=(made,), usage=Usage(input=number, output=1))
            transcript.message(run, asked)
            for each in range(nested if number == 49 else 1):
                for state in STATES:
                    transcript.nested(
                        run,
                        parent_id="same",
                        call_id=f"cm:{each}",
                        tool_id="core:echo",
                        state=state,
                    )
            said = ToolMessage(call_id="same", name="exec", content=(Text(f"{text}{number}"),))
            transcript.message(run, said)
            transcript.end_run(run, "ok")


@pytest.mark.covers("GP-11")
async def test_pages_of_any_size_have_the_same_entries_and_every_result_its_call(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path) as it:
        await make_long(it, "tea", nested=500)
        whole = await read_all(it, 200, sessionKey="tea")
        assert len(whole) == 200
        for limit in (1, 3, 7):
            assert await read_all(it, limit, sessionKey="tea") == whole
        calls = [each["calls"][0] for each in whole if each.get("calls")]
        assert [one["text"] for one in calls] == [f"x{number}" for number in reversed(range(50))]
        assert [one["nestedCount"] for one in calls] == [500, *[1] * 49]
        assert len(calls[0]["nested"]) == 200
        found: list[Any] = []
        after, page = 0, dict[str, Any]()
        while after is not None:
            page = await it.call(
                "sessions.nested", sessionKey="tea", runId="run49", callId="same", after=after
            )
            found += page["calls"]
            after = page["next"]
        assert [each["callId"] for each in found] == [f"cm:{number}" for number in range(500)]
        assert page["total"] == 500


@pytest.mark.hostile
@pytest.mark.covers("GP-12")
async def test_a_long_text_is_cut_on_its_page_and_whole_alone(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        await make_long(it, "tea", text="y" * 1_000_000)
        page = await it.call("sessions.transcript", sessionKey="tea", limit=200)
        assert len(json.dumps(page)) < 2 * pages.MAX_PAGE_CHARS
        entry = next(each for each in page["entries"] if each.get("calls"))
        cut = entry["calls"][0]
        assert (len(cut["text"]), cut["cut"]) == (pages.MAX_TEXT, 1_000_002)
        alone = await it.call("sessions.entry", sessionKey="tea", id=entry["id"])
        assert alone["entry"]["calls"][0]["text"] == "y" * 1_000_000 + "49"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "given", "code"),
    [
        ("transcript", {"before": "made up"}, "NOT_FOUND before"),
        ("transcript", {"before": 1}, "INVALID_REQUEST before"),
        ("transcript", {"before": "x" * 10_000}, "INVALID_REQUEST before"),
        ("transcript", {"limit": 0}, "INVALID_REQUEST limit"),
        ("transcript", {"limit": 10_000}, "INVALID_REQUEST limit"),
        ("transcript", {"sessionKey": "nobody"}, "NOT_FOUND"),
        ("transcript", {"sessionId": "../../etc/passwd"}, "INVALID_REQUEST sessionKey"),
        ("entry", {"id": "made up"}, "NOT_FOUND id"),
        ("entry", {}, "INVALID_REQUEST id"),
        ("nested", {"runId": "r", "callId": "c", "after": -1}, "INVALID_REQUEST after"),
        ("nested", {"runId": "r"}, "INVALID_REQUEST callId"),
        ("nested", {"runId": "r", "callId": "c", "limit": 10**9}, "INVALID_REQUEST limit"),
    ],
)
async def test_invented_positions_are_refused(
    tmp_path: Path, name: str, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        await it.call("sessions.create", sessionKey="tea")
        assert await it.code(f"sessions.{name}", **{"sessionKey": "tea", **given}) == code


async def test_a_session_without_messages_has_an_empty_page(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        await it.call("sessions.create", sessionKey="tea")
        page = await it.call("sessions.transcript", sessionKey="tea")
        assert (page["entries"], page["next"]) == ([], None)
        nested = await it.call("sessions.nested", sessionKey="tea", runId="r", callId="c")
        assert nested == {"calls": [], "next": None, "total": 0}


@pytest.mark.hostile
async def test_a_damaged_transcript_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        await make_long(it, "tea")
        session = await it.gateway.host.runtime.sessions.resolve("tea")
        with session.transcript.open("ab") as file:
            file.write(b'nonsense\n{"type": "message", "id": "bad"}\n[]\n{"torn')
        page = await it.call("sessions.transcript", sessionKey="tea", limit=1)
        assert (page["unreadable"], page["entries"][0]["phase"]) == (3, "end")
        (found,) = (await it.call("sessions.list", previews=True))["sessions"]
        assert found["lastMessage"]["text"] == "question 49"


# ---- The list ----


@pytest.mark.hostile
@pytest.mark.covers("GP-13")
@pytest.mark.hostile
async def test_a_long_text_is_not_cut_inside_of_a_secret(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple"
    long = "x" * (pages.MAX_TEXT - 10) + secret
    source = f"// {long}\nawait tools.echo({{text: {json.dumps(long)}}}); return {json.dumps(long)}"
    script = [Turn(call("exec", {"code": source})), Turn(long)]
    async with inside(tmp_path, script, tools=[echo()], rules=CODE_MODE) as it:
        it.gateway.learn_secrets([secret])
        run = await it.call("agent", message=long, sessionKey="tea")
        await it.call("agent.wait", runId=run["runId"])
        shown = json.dumps(await it.call("sessions.transcript", sessionKey="tea"))
        heard = json.dumps(events(it.admin, "agent", "chat", "session.tool", "session.message"))
        assert "xxx***" in shown
        assert "correct" not in shown + heard


async def test_a_preview_shows_no_half_of_a_secret_and_a_search_does_not_guess_one(
    tmp_path: Path,
) -> None:
    secret = "correct-horse-battery-staple"
    async with inside(tmp_path, [f"{'x ' * 95}{secret}", f"It is {secret}."]) as it:
        it.gateway.learn_secrets([secret])
        for key in ("cut", "whole"):
            run = await it.call("agent", message="go", sessionKey=key)
            await it.call("agent.wait", runId=run["runId"])
        reader = it.client("operator.read")
        found = (await it.call("sessions.list", reader, previews=True))["sessions"]
        assert len(found) == 2
        assert "correct" not in str(found)
        assert len((await it.call("sessions.list", reader, query="it is"))["sessions"]) == 1
        for guess in ("correct", "correct-horse"):
            assert (await it.call("sessions.list", reader, query=guess))["sessions"] == []


@pytest.mark.covers("GP-13")
async def test_sessions_are_found_by_key_title_and_last_message(tmp_path: Path) -> None:
    async with inside(tmp_path, ["The kettle is ON."]) as it:
        run = await it.call("agent", message="Boil water", sessionKey="tea")
        await it.call("agent.wait", runId=run["runId"])
        for key in ("milk", "sugar", "coffee"):
            await it.call("sessions.create", sessionKey=key, title=f"About {key.upper()}")

        async def find(query: str) -> list[str]:
            found = await it.call("sessions.list", it.client("operator.read"), query=query)
            return sorted(each["key"].rpartition(":")[2] for each in found["sessions"])

        assert await find("TEA") == ["tea"]
        assert await find("about sugar") == ["sugar"]
        assert await find("kettle") == ["tea"]
        assert await find("kettle on main:tea") == ["tea"]
        assert await find("about") == ["coffee", "milk", "sugar"]
        assert await find("nothing like it") == []
        assert await find("%") == await find("_;--") == []
        listed = (await it.call("sessions.list"))["sessions"]
        assert not any("lastMessage" in each for each in listed)
        (found,) = (await it.call("sessions.list", query="kettle"))["sessions"]
        assert found["lastMessage"]["role"] == "assistant"


@pytest.mark.covers("GP-13")
async def test_all_sessions_are_listed_page_by_page(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        for number in range(25):
            await it.call("sessions.create", sessionKey=f"s{number}", title="odd" * (number % 2))
        for given in (dict[str, Any](), {"query": "odd"}):
            keys = list[str]()
            before: dict[str, Any] = {}
            while True:
                page = await it.call("sessions.list", limit=4, **given, **before)
                keys += [each["key"] for each in page["sessions"]]
                if page["next"] is None:
                    break
                before = {"before": page["next"]}
            assert len(keys) == len(set(keys)) == (12 if given else 25)
            assert keys[0] == ("agent:main:s23" if given else "agent:main:s24")
        skipped = await it.call("sessions.list", limit=3, offset=2)
        assert [each["title"] for each in skipped["sessions"]] == ["", "odd", ""]


@pytest.mark.hostile
@pytest.mark.parametrize("before", ["x", "|", "nan|a", "inf|a", "1e999|a", "1", "x" * 10_000, 7])
async def test_an_invented_cursor_is_refused(tmp_path: Path, before: Any) -> None:
    async with inside(tmp_path) as it:
        assert await it.code("sessions.list", before=before) == "INVALID_REQUEST before"
        assert await it.code("sessions.list", before="1.0|'; drop table sessions") == "ok"
