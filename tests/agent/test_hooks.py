"""The hooks of runs and messages: one test for each rule."""

from typing import Any

import anyio
import pytest

import clawmode.tools.hooks
from clawmode.agent.hooks import (
    AgentEnd,
    AgentHooks,
    ClaimedReply,
    Install,
    InstallDecision,
    MessageEvent,
    ModelOverride,
    ModelResolve,
    PromptAdditions,
    PromptBuild,
    SendDecision,
)
from clawmode.context import RunContext
from clawmode.exceptions import UnknownHook
from clawmode.messages import Text, ToolMessage, UserMessage
from clawmode.tools.hooks import NAMES, Hooks

pytestmark = pytest.mark.anyio

RUN = RunContext(run_id="r")
RESOLVE = ModelResolve(prompt="hello", run=RUN)
BUILD = PromptBuild(prompt="hello", run=RUN, messages=(UserMessage.of("before"),))
INSTALL = Install(kind="plugin", name="x", version="1", folder="/tmp/x")
MESSAGE = MessageEvent(text="hi", channel="terminal")


def hooks(event: str, *answers: Any) -> AgentHooks:
    """Hooks that answer these, the first with the highest priority."""
    made = Hooks()
    for number, answer in enumerate(answers):

        def hook(shown: Any, answer: Any = answer) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        made.on(event, hook, priority=-number, name=f"hook{number}")
    return AgentHooks(made)


def test_a_hook_that_nobody_calls_cannot_be_registered() -> None:
    with pytest.raises(UnknownHook, match="did you mean before_tool_call"):
        Hooks().on("before_toolcall", print)


async def test_hooks_run_by_priority_and_ties_in_their_order() -> None:
    made = Hooks()
    seen: list[Any] = []
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -1)):
        made.on("agent_end", lambda event, name=name: seen.append(name), priority=priority)
    remove = made.on("agent_end", lambda event: seen.append("removed"))
    remove()
    remove()
    await made.notify("agent_end", None)
    assert seen == ["b", "a", "c", "d"]


@pytest.mark.parametrize("event", sorted(NAMES))
async def test_a_hook_that_breaks_down_is_named_and_the_others_run(
    event: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clawmode.tools.hooks, "HOOK_SECONDS", 0.05)
    made = Hooks()
    seen: list[Any] = []

    async def hangs(shown: Any) -> None:
        await anyio.sleep_forever()

    def exits(shown: Any) -> None:
        raise SystemExit(3)

    made.on(event, hangs, name="the hanging one")
    made.on(event, exits, name="the one that exits")
    made.on(event, seen.append)
    await made.notify(event, "event")
    assert seen == ["event"]
    for name in ("the hanging one", "the one that exits"):
        assert f"{name} of {event}" in caplog.text


@pytest.mark.covers("AL-33")
async def test_the_model_is_the_first_that_a_hook_names_without_messages() -> None:
    answers = [None, {"provider": "a"}, ModelOverride(provider="b", model="m")]
    made = hooks("before_model_resolve", *answers)
    assert await made.choose_model(RESOLVE) == ModelOverride(provider="a", model="m")
    assert not hasattr(RESOLVE, "messages")


@pytest.mark.covers("AL-34", "AL-35")
async def test_the_prompt_takes_all_contexts_and_the_first_system_prompt() -> None:
    made = hooks(
        "before_prompt_build",
        PromptAdditions(prepend_context="one", append_system_context="tail"),
        {"prependContext": "two", "systemPrompt": "first", "prependSystemContext": "head"},
        {"systemPrompt": "second"},
        {"unknown": 1},
        ValueError("broken"),
        42,
    )
    assert await made.build_prompt(BUILD) == PromptAdditions(
        prepend_context="one\n\ntwo",
        system_prompt="first",
        prepend_system_context="head",
        append_system_context="tail",
    )


@pytest.mark.covers("AL-36")
async def test_the_legacy_hook_works_in_both_phases() -> None:
    shown: list[int] = []
    made = Hooks()

    def start(event: PromptBuild) -> dict[str, str]:
        shown.append(len(event.messages))
        return {"model": "old", "prependContext": "context"}

    made.on("before_agent_start", start)
    run = AgentHooks(made)
    assert (await run.choose_model(RESOLVE)).model == "old"
    assert (await run.build_prompt(BUILD)).prepend_context == "context"
    assert shown == [0, 1]


@pytest.mark.covers("AL-37")
@pytest.mark.parametrize(
    ("answers", "claimed"),
    [
        ([None, None], None),
        ([None, {"text": "mine"}, {"text": "late"}], ClaimedReply(text="mine")),
        ([{"silent": True}], ClaimedReply(silent=True)),
        ([ValueError("broken"), {"text": "next"}], ClaimedReply(text="next")),
        ([{"text": 5}], None),
    ],
)
async def test_the_first_hook_that_wants_a_turn_has_it(answers: Any, claimed: Any) -> None:
    assert await hooks("before_agent_reply", *answers).claim_reply(BUILD) == claimed


@pytest.mark.covers("AL-38")
async def test_the_end_of_a_run_is_shown_with_its_messages() -> None:
    made = Hooks()
    seen: list[Any] = []
    made.on("agent_end", seen.append)
    end = AgentEnd(run=RUN, status="ok", messages=BUILD.messages, metadata={"assistantTurns": 1})
    await AgentHooks(made).end_run(end)
    assert seen == [end]


@pytest.mark.covers("AL-46")
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([None, {"block": False}], None),
        ([{"block": True, "blockReason": "no"}, {"block": False}], "no"),
        ([{"block": False}, InstallDecision(block=True)], "blocked by the hook 'hook1'"),
        ([ValueError("x")], "the hook 'hook0' failed"),
        ([{"blok": True}], "the hook 'hook0' failed"),
    ],
)
async def test_a_block_of_an_install_is_final(answers: Any, why: str | None) -> None:
    assert await hooks("before_install", *answers).inspect_install(INSTALL) == why


@pytest.mark.covers("AL-48")
@pytest.mark.parametrize(
    ("answers", "sent"),
    [
        ([None, {"cancel": False}], "hi"),
        ([{"text": "HI"}, {"cancel": False}], "HI"),
        ([{"cancel": True}, {"cancel": False, "text": "again"}], None),
        ([{"cancel": False}, SendDecision(cancel=True)], None),
        ([ValueError("x"), {"text": "next"}], None),
        ([SendDecision(text=5), {"text": "next"}], None),  # pyrefly: ignore[bad-argument-type]
        ([{"cancel": True, "reason": "unknown"}], None),
    ],
)
async def test_a_cancelled_message_stays_cancelled(answers: Any, sent: str | None) -> None:
    made = await hooks("message_sending", *answers).send(MESSAGE)
    assert (None if made is None else made.text) == sent


@pytest.mark.covers("AL-42")
def test_a_result_is_rewritten_at_once_and_stays_the_calls_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def slow(message: ToolMessage) -> None: ...

    made = Hooks()
    result = ToolMessage(call_id="1", name="read", content=(Text("secret"),))
    other = ToolMessage(call_id="2", name="other", content=(Text("***"),))
    made.on("tool_result_persist", lambda message: other)
    made.on("tool_result_persist", slow, name="slow")
    made.on("tool_result_persist", lambda message: "nonsense", name="nonsense")
    kept = AgentHooks(made).persist(result)
    assert (kept.call_id, kept.name, kept.text) == ("1", "read", "***")
    assert "slow" in caplog.text
    assert "nonsense" in caplog.text
