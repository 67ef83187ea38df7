"""Attacks on runs, sessions, commands and secrets; each found a bug when it was written."""

import gc
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agent.test_watch import Watching
from tests.support.agent_driver import configured, opened
from tests.support.chat_driver import ANY, talking
from tests.support.waiting import Gate, idle, until, within

from clawmode.agent.hooks import SendDecision
from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import AgentRun
from clawmode.app.secrets import known_secrets
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptedModel, Turn, call, pause
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]

SLOW = Turn(call("slow", id="c1"))
KEY = "agent:main:main"
SECRET = "hunter2-hunter2"
DIRECT = configured(tools={})


class Lingering(Gate):
    """A tool that ends only when the test lets it go, though it was cancelled."""

    async def _call(self, given: JsonObject, context: ToolContext) -> str:
        self.entered.set()
        try:
            await self.open.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.let_go.wait()
        return "done"

    def __init__(self) -> None:
        super().__init__()
        self.let_go = anyio.Event()
        self.tool = Tool("slow", "Slow.", ANY, self._call)


# ---- Sessions that change under a run that waits ----


async def test_what_is_asked_while_a_session_is_reset_is_in_the_new_one(tmp_path: Path) -> None:
    """A run is bound to a session when it is accepted; by its turn that may be the old one."""
    gate = Lingering()
    async with opened(tmp_path, [SLOW, "New."], tools=[gate.tool], configuration=DIRECT) as agent:
        first = await agent.runtime.start(AgentRequest(message="one"))
        await gate.entered.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.runtime.care.reset, first.session)
            await idle()
            second = await agent.runtime.start(AgentRequest(message="two"))
            gate.let_go.set()
        with anyio.fail_after(5):
            await second.ended.wait()
        current = await agent.runtime.sessions.get(KEY)
        assert current.id != first.session.id
        assert second.session.id == current.id


async def test_a_run_does_not_write_to_a_session_that_was_deleted(tmp_path: Path) -> None:
    """The same with a deletion: its transcript is a file that no session has."""
    gate = Lingering()
    async with opened(tmp_path, [SLOW, "New."], tools=[gate.tool], configuration=DIRECT) as agent:
        first = await agent.runtime.start(AgentRequest(message="one"))
        await gate.entered.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.runtime.care.delete, first.session)
            await idle()
            second = await agent.runtime.start(AgentRequest(message="two"))
            gate.let_go.set()
        with anyio.fail_after(5):
            await second.ended.wait()
        listed = {session.id for session in await agent.runtime.sessions.list()}
        kept = {path.stem for path in first.session.transcript.parent.glob("*.jsonl")}
        kept = {name for name in kept if not name.endswith(".trajectory")}
        assert kept <= listed, "a transcript that nobody can find or delete"


async def test_a_queued_run_sees_that_another_process_deleted_its_session(tmp_path: Path) -> None:
    """The same if it was deleted by a command, while the run waited."""
    gate = Gate()
    async with opened(
        tmp_path, [SLOW, "Two."], tools=[gate.tool], max_concurrent=1, configuration=DIRECT
    ) as agent:
        first = await agent.runtime.start(AgentRequest(message="one"))
        await gate.entered.wait()
        second = await agent.runtime.start(AgentRequest(message="two", session_key="other"))
        await SessionStore(tmp_path / "sessions").delete("agent:main:other")
        gate.open.set()
        with anyio.fail_after(5):
            await second.ended.wait()
            await first.ended.wait()
        listed = {session.id for session in await agent.runtime.sessions.list()}
        assert not second.session.transcript.exists() or second.session.id in listed


# ---- Sessions that wait for others ----


async def test_a_session_is_reset_while_all_places_are_taken(tmp_path: Path) -> None:
    """/new in one conversation waits for the runs of all others."""
    gate = Gate()
    async with opened(
        tmp_path, [SLOW, "Done."], tools=[gate.tool], max_concurrent=1, configuration=DIRECT
    ) as agent:
        await agent.runtime.start(AgentRequest(message="one"))
        await gate.entered.wait()
        idle = await agent.runtime.sessions.resolve("idle")
        try:
            with within(1):  # the run does not end before the gate opens
                made = await agent.runtime.care.reset(idle)
        finally:
            gate.open.set()
        assert made.id != idle.id


async def test_new_does_not_wait_for_a_summary(tmp_path: Path) -> None:
    """Neither /stop nor /new stops a /compact: for up to three minutes, nothing goes on."""
    stuck = anyio.Event()
    script = ["One.", "Two.", "Three.", Turn(pause(stuck), "Summary.")]
    async with talking(tmp_path, script) as talk:
        for text in ("a " * 400, "b " * 400, "c " * 400):
            await talk.say(text)
            await talk.settled()
        await talk.say("/compact")
        await until(lambda: len(talk.model.requests) == 4)
        await talk.say("/stop")
        try:
            with within(1):  # the summary does not come before this has ended
                await talk.say("/new")
        finally:
            stuck.set()
        assert talk.room.texts()[-1].startswith("Started a new conversation")


async def test_stop_does_not_wait_for_hooks(tmp_path: Path) -> None:
    """A hook that hangs on one message keeps /stop out of the session until it times out."""
    gate = Gate()
    async with talking(tmp_path, [SLOW, "Done."], tools=[gate.tool]) as talk:
        await talk.say("wipe the disk")
        await gate.entered.wait()

        async def hang(event: Any) -> None:
            if not event.text.startswith("/"):
                await anyio.sleep_forever()

        talk.hooks.on("message_received", hang)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.say, "hello?")
            await idle()
            with within(1):  # the hook never returns
                await talk.say("/stop")
            tasks.cancel_scope.cancel()


# ---- Runs that nobody hears of ----


async def test_who_asked_hears_that_their_run_was_given_up(tmp_path: Path) -> None:
    """Diagnostics abort a run, and whoever waits for an answer is never told."""
    async with talking(tmp_path, [Turn(pause(60), "Late.")]) as talk:
        watching = Watching(talk.runtime)
        taken = await talk.say("go")
        await until(lambda: (run := talk.runtime.find(taken.id)) and run.intake.is_open)
        watching.after(130)
        assert "session.stalled" in watching.after(240)
        await talk.settled()
        assert talk.room.texts() != []


async def test_a_hook_of_the_wrong_type_does_not_end_the_host(tmp_path: Path) -> None:
    """`SendDecision(text=5)` is not looked at; the exception ends delivery, and the host."""
    async with talking(tmp_path, ["One.", "Two."]) as talk:
        answers: Any = SendDecision(text=5)  # pyrefly: ignore[bad-argument-type]
        remove = talk.hooks.on("message_sending", lambda event: answers)
        await talk.say("one")
        await talk.settled()
        remove()
        await talk.say("two")
        await talk.settled()
        assert "Two." in talk.room.texts()


async def test_work_that_never_began_is_no_progress(tmp_path: Path) -> None:
    """Who starts and aborts runs that wait keeps a stalled one alive forever."""
    async with opened(tmp_path, [Turn(pause(60), "Late.")]) as agent:
        watching = Watching(agent.runtime)
        run = await agent.runtime.start(AgentRequest(message="go"))
        await until(lambda: run.intake.is_open)
        found: list[str] = []
        for _ in range(5):
            found += watching.after(100)
            waits = await agent.runtime.start(AgentRequest(message="more"))
            await idle()
            agent.runtime.abort(waits.id)
            await waits.ended.wait()
        assert "session.stalled" in found


# ---- Secrets ----


@pytest.mark.parametrize(
    "sections",
    [
        {"skills": {"entries": {"github": {"env": {"X": "hunter2-hunter2"}}}}},
        {"tools": {"exec": {"env": {"X": "hunter2-hunter2"}}}},
        {
            "hooks": {
                "internal": {
                    "entries": {
                        "a": {
                            "events": ["command"],
                            "command": ["true"],
                            "env": {"X": "hunter2-hunter2"},
                        }
                    }
                }
            }
        },
        {"plugins": {"entries": {"p": {"config": {"apiKey": "hunter2-hunter2"}}}}},
        {"channels": {"c": {"secret": "abcdefgh", "url": "https://x.test/hunter2-hunter2"}}},
        {
            "hooks": {
                "internal": {
                    "entries": {
                        "h": {"events": ["session:start"], "command": ["n", "--token", SECRET]}
                    }
                }
            }
        },
        {"security": {"installPolicy": {"command": ["env", f"API_KEY={SECRET}", "decide"]}}},
    ],
    ids=[
        *("skill env", "exec env", "hook env", "plugin config", "channel url"),
        *("hook argument", "install argument"),
    ],
)
@pytest.mark.covers("S-21")
def test_all_secrets_of_a_configuration_are_known(sections: dict[str, Any]) -> None:
    """Settings that are marked secret are not struck out of trajectories."""

    class _Setup:
        configuration = configured(**sections)
        servers: tuple[Any, ...] = ()

    setup: Any = _Setup()
    assert any("hunter2-hunter2" in each for each in known_secrets(setup))


# ---- Looking without touching ----


async def test_to_look_at_a_prompt_makes_no_folders(tmp_path: Path) -> None:
    """Each preview of a sandboxed agent leaves a folder for a session that there is not."""
    configuration = configured(
        agents={"defaults": {"model": "scripted/a", "sandbox": {"mode": "all"}}}
    )
    async with opened(tmp_path, ["Hi."], configuration=configuration) as agent:
        for _ in range(3):
            await agent.runtime.preview(AgentRequest(message="x", session_key="new"))
        made = tmp_path / "sandboxes"
        assert not made.exists() or list(made.iterdir()) == []


# ---- What is kept ----


async def test_a_run_that_has_ended_does_not_keep_its_conversation(tmp_path: Path) -> None:
    """The last 1000 runs each keep a copy of all that was said in their session."""
    async with opened(tmp_path, ["One.", "Two."]) as agent:
        await agent.ask("a")
        await agent.ask("b")
        gc.collect()
        kept = [it for it in gc.get_objects() if type(it) is AgentRun]
        mine = [it for it in kept if it.session.transcript.is_relative_to(tmp_path)]
        assert mine
        assert not [it for it in mine if it.said or hasattr(it, "transcript")]


async def test_a_deleted_session_leaves_no_sandbox(tmp_path: Path) -> None:
    """What a sandboxed session worked with stays when it is deleted."""
    configuration = configured(
        agents={"defaults": {"model": "scripted/a", "sandbox": {"mode": "all"}}}
    )
    async with opened(tmp_path, ["Hi."], configuration=configuration) as agent:
        await agent.ask("a")
        session = await agent.runtime.sessions.get(KEY)
        await agent.runtime.care.delete(session)
        assert list((tmp_path / "sandboxes").iterdir()) == []


# ---- What the model can reach ----


async def test_a_workspace_around_the_state_does_not_let_a_model_rule(tmp_path: Path) -> None:
    """In a workspace that holds the state, `write` changes what the host forbids."""
    (tmp_path / "exec-approvals.json").write_text(
        json.dumps({"version": 1, "defaults": {"security": "deny"}})
    )
    rules: JsonObject = {"path": "exec-approvals.json", "content": '{"version": 1}'}
    script = [
        Turn(call("write", rules, id="c1")),
        Turn(call("exec", {"command": "echo out > proof"}, id="c2")),
        "Done.",
    ]
    agents = {"defaults": {"model": "scripted/a", "workspace": str(tmp_path)}}
    async with talking(tmp_path, script, own=True, agents=agents) as talk:
        await talk.say("go")
        await talk.settled()
        assert not (tmp_path / "proof").exists()


async def test_a_model_cannot_write_itself_a_skill_to_have_its_secrets(tmp_path: Path) -> None:
    """A `SKILL.md` of the right name in the workspace brings the variables of that skill."""
    skill: JsonObject = {"path": "skills/deploy/SKILL.md", "content": "---\ndescription: x\n---\nx"}
    script = [
        Turn(call("write", skill, id="c1")),
        "Made.",
        Turn(call("exec", {"command": "echo $DEPLOY_TOKEN > proof"}, id="c2")),
        "Done.",
    ]
    skills = {"entries": {"deploy": {"env": {"DEPLOY_TOKEN": "hunter2"}}}}
    async with talking(tmp_path, script, own=True, skills=skills) as talk:
        for _ in range(2):
            await talk.say("go")
            await talk.settled()
        assert (tmp_path / "workspace" / "proof").read_text().strip() == ""


# ---- What a model is told ----


async def test_what_hooks_put_before_a_message_is_still_there_when_it_is_shortened(
    tmp_path: Path,
) -> None:
    """After a compaction inside of a run, `prependContext` is gone."""
    hooks = Hooks()
    hooks.on("before_prompt_build", lambda event: {"prependContext": "Never delete anything."})
    small = {"contextTokens": 4_000, "compaction": {"reserveTokens": 1_000, "keepRecentTokens": 99}}
    configuration = configured(agents={"defaults": {"model": "scripted/a", **small}})
    model = ScriptedModel(["x " * 3_000, "y " * 3_000, "In short: letters.", "Done."])
    async with opened(tmp_path, model, configuration=configuration, hooks=hooks) as agent:
        for _ in range(3):
            await agent.ask("go")
    assert len(model.requests) == 4
    assert "Never delete anything." in str(model.requests[-1].messages)
