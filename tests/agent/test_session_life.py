"""How sessions begin and end, and what a run takes from its session and its agent."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_driver import configured, opened

from clawmode.agent.hooks import SessionEvent
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.config.operations import InternalHook, InternalHooks
from clawmode.models.base import ModelError
from clawmode.sessions.keys import UnknownSession
from clawmode.sessions.lock import current_hold
from clawmode.sessions.trajectory import sidecar_path
from clawmode.testing import ScriptedModel, Turn, call
from clawmode.tools.function import tool
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall, Hooks, ToolCallDecision

pytestmark = pytest.mark.anyio

KEY = "agent:main:main"


@tool(effect="read")
def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.covers("AL-44")
async def test_hooks_frame_a_session(tmp_path: Path) -> None:
    hooks, seen = Hooks(), list[tuple[str, str, str]]()
    for kind in ("session_start", "session_end"):

        def watch(event: SessionEvent, kind: str = kind) -> None:
            seen.append((kind, event.id, event.reason))

        hooks.on(kind, watch)
    async with opened(tmp_path, ["one", "two", "three"], hooks=hooks) as agent:
        await agent.ask()
        await agent.ask()
        first = await agent.runtime.sessions.get(KEY)
        second = await agent.runtime.care.reset(first, "new")
        await agent.ask()
        assert await agent.runtime.care.delete(second) == 2
        with pytest.raises(UnknownSession):
            await agent.runtime.sessions.get(KEY)
    assert seen == [
        ("session_start", first.id, ""),
        ("session_end", first.id, "new"),
        ("session_start", second.id, ""),
        ("session_end", second.id, "deleted"),
    ]


async def test_a_hook_of_a_session_that_fails_hurts_nobody(tmp_path: Path) -> None:
    hooks = Hooks()

    def fails(event: SessionEvent) -> None:
        raise RuntimeError("no")

    hooks.on("session_start", fails)
    hooks.on("session_end", fails)
    async with opened(tmp_path, ["one"], hooks=hooks) as agent:
        assert (await agent.ask()).status == "ok"
        session = await agent.runtime.sessions.get(KEY)
        assert (await agent.runtime.care.reset(session)).id != session.id


@pytest.mark.covers("AL-31")
async def test_scripts_of_the_operator_choose_what_a_run_reads_first(tmp_path: Path) -> None:
    script = tmp_path / "files.py"
    script.write_text(
        "def handle(event):\n"
        "    assert [it['name'] for it in event['files']] == ['AGENTS.md', 'SOUL.md'], event\n"
        "    return {'remove': ['SOUL.md'], 'add': [{'name': 'TODAY.md', 'text': 'It rains.'}]}\n"
    )
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text("Be kind.")
    (workspace / "SOUL.md").write_text("Be stern.")
    entry = InternalHook(events=("agent:bootstrap",), file=str(script))
    operator = OperatorHooks(InternalHooks(entries={"files": entry}), tmp_path)
    model = ScriptedModel(["one"])
    agents = {"defaults": {"model": "scripted/a", "workspace": str(workspace)}}
    async with opened(
        tmp_path, model, operator=operator, configuration=configured(agents=agents)
    ) as agent:
        await agent.ask()
    system = model.requests[0].system
    assert "Be kind." in system
    assert "It rains." in system
    assert "Be stern." not in system


@pytest.mark.covers("AL-4")
async def test_a_session_is_found_by_key_or_id_and_knows_its_runs(tmp_path: Path) -> None:
    async with opened(tmp_path, ["one", "two"]) as agent:
        result = await agent.ask(session_key="report")
        again = await agent.ask(session_id=result.session_id)
        assert again.session_key == "agent:main:report"
        session = await agent.runtime.sessions.get("agent:main:report")
        assert (session.id, session.last_status) == (result.session_id, "ok")
        assert session.usage.output > 0


@pytest.mark.covers("AL-6")
async def test_levels_come_from_the_agent_unless_the_request_says(tmp_path: Path) -> None:
    defaults = {"model": "scripted/a", "thinking": "low", "verbose": "on", "trace": "off"}
    calls = [Turn(call("echo", {"text": "word " * 100})), "done"]
    model = ScriptedModel([*calls, *calls, "three"])
    async with opened(
        tmp_path,
        model,
        tools=[echo],
        configuration=configured(agents={"defaults": defaults}, tools={}),
    ) as agent:
        first = await agent.ask()
        session = await agent.runtime.sessions.get(KEY)
        sidecar = sidecar_path(session.transcript, session.id)
        assert not sidecar.exists()
        full = await agent.ask(thinking="high", verbose="full", trace=True)
        assert sidecar.exists()
        silent = await agent.ask(verbose="off")
    levels = [request.thinking for request in model.requests]
    assert levels == ["low", "low", "high", "high", "low"]
    summaries = [
        [len(str(it["text"])) for it in result.payloads if it.get("kind") == "tool"]
        for result in (first, full, silent)
    ]
    assert summaries == [[207], [506], []]


@pytest.mark.covers("AL-7")
async def test_a_run_is_built_with_the_model_and_the_key_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ScriptedModel(["from b"], provider="b")
    agents = {"defaults": {"model": "scripted/a"}, "list": [{"id": "second", "model": "b/x"}]}
    async with opened(
        tmp_path, ["from a"], models={"b/*": other}, configuration=configured(agents=agents)
    ) as agent:
        assert (await agent.ask()).metadata["provider"] == "scripted"
        assert (await agent.ask(agent_id="second")).metadata["provider"] == "b"


@pytest.mark.covers("AL-8")
@pytest.mark.parametrize(
    "script", [["ok"], [Turn(error="auth")], [Turn(error="server")] * 9, [ModelError]]
)
async def test_whatever_happens_a_run_has_one_end(tmp_path: Path, script: Any) -> None:
    model: Any = ScriptedModel(script)
    if script == [ModelError]:

        def explode(request: object) -> None:
            raise RuntimeError("no model does this")

        model.stream = explode
    async with opened(tmp_path, model) as agent:
        await agent.ask(timeout_seconds=3)
        phases = [data["phase"] for data in agent.of("lifecycle")]
    assert phases[0] == "start"
    assert phases[1:] in (["end"], ["error"])


@pytest.mark.covers("AL-27")
async def test_the_session_is_locked_and_open_before_anything_streams(tmp_path: Path) -> None:
    held: list[bool] = []
    async with opened(tmp_path, [Turn("word")]) as agent:

        def look(event: Any) -> None:
            if event.stream == "assistant":
                files = (tmp_path / "sessions" / "main").glob("*.jsonl")
                (file,) = (it for it in files if "trajectory" not in it.name)
                held.append(current_hold(file) is not None)

        agent.runtime.subscribe(look)
        await agent.ask()
    assert held
    assert all(held)


@pytest.mark.covers("AL-40")
async def test_hooks_change_what_a_tool_is_given_and_see_what_it_gave(tmp_path: Path) -> None:
    hooks, seen = Hooks(), list[Any]()

    def before(event: BeforeToolCall) -> ToolCallDecision:
        return ToolCallDecision(params={"text": str(event.params["text"]).upper()})

    def after(event: AfterToolCall) -> None:
        assert event.result is not None
        seen.append((event.call.params, event.result.text))

    hooks.on("before_tool_call", before)
    hooks.on("after_tool_call", after)
    model = ScriptedModel([Turn(call("echo", {"text": "hi"})), "done"])
    async with opened(
        tmp_path, model, tools=[echo], hooks=hooks, configuration=configured(tools={})
    ) as agent:
        await agent.ask()
    assert "HI" in str(model.requests[1].messages[-1].content)
    assert seen[0][0] == {"text": "HI"}


@pytest.mark.covers("AL-52")
async def test_large_results_and_pictures_are_not_sent_to_watchers(tmp_path: Path) -> None:
    model = ScriptedModel([Turn(call("echo", {"text": "x" * 100_000})), "done"])
    async with opened(tmp_path, model, tools=[echo], configuration=configured(tools={})) as agent:
        await agent.ask()
        told = agent.of("tool")
    assert max(len(str(data)) for data in told) < 10_000
    assert len(str(model.requests[1].messages[-1].content)) > 40_000


@pytest.mark.covers("AD-3")
async def test_what_programs_store_lives_as_long_as_the_session(tmp_path: Path) -> None:
    """If it is so configured: by default it ends with the turn."""
    found: list[Any] = []

    @tool
    def tell(value: Any) -> None:
        """Tell the test."""
        found.append(value)

    def turn(code: str) -> list[Any]:
        return [Turn(call("exec", {"code": code})), "done"]

    load = 'await tools.tell({ value: load("a") ?? null })'
    script = [*turn('store("a", 1)'), *turn(load), *turn(load)]
    for level, expected in (("session", [1, None]), ("run", [None, None])):
        configuration = configured(tools={"codeMode": {"enabled": True, "state": level}})
        folder = tmp_path / level
        async with opened(folder, script, configuration=configuration, tools=[tell]) as agent:
            await agent.ask()
            await agent.ask()
            await agent.runtime.care.reset(await agent.runtime.sessions.get(KEY), "new")
            await agent.ask()
        assert found == expected
        found.clear()
