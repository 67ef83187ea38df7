"""Carries out one run inside of its session: the lock is held, and the transcript is open.

`carry_out` opens the run's tools, builds its prompt and runs the loop. It records how the run
ended, whatever ended it.
"""

import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio

from clawmode import __version__
from clawmode.agent.compaction import Compactor, estimate, room_for
from clawmode.agent.hooks import AgentHooks, ModelResolve, PromptBuild
from clawmode.agent.loop import Loop
from clawmode.agent.preview import Preview
from clawmode.agent.prompt import Ingredients, Prompt, build
from clawmode.agent.recorder import Recorder
from clawmode.agent.replies import SILENT
from clawmode.agent.run import AgentRun, time_limit
from clawmode.agent.search_toolbox import SearchSurface, open_search
from clawmode.agent.toolbox import CodeModeTools, DirectTools, Toolbox
from clawmode.catalog.controls import is_control
from clawmode.code_mode.code_mode import CodeMode
from clawmode.exceptions import ClawmodeError
from clawmode.messages import AssistantMessage, Text, UserMessage
from clawmode.models.debug import debug_flags, log
from clawmode.redaction import Redactor
from clawmode.sessions.trajectory import Trajectory, sidecar_path
from clawmode.text import KnownSecrets
from clawmode.tools.executor import Executor
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.agent")

NOTHING_SAID = "The process ended before the message was recorded: send it again."
CONTINUED = "[The process ended in the middle of this, and has been started again. Go on.]"


async def choose_model(run: AgentRun) -> None:
    """Lets hooks choose another model for a run that is not resolved yet."""
    hooks = run.shared.hooks
    if hooks.has("before_model_resolve", "before_agent_start"):
        event = ModelResolve(prompt=run.request.message, run=run.context)
        chosen = await AgentHooks(hooks).choose_model(event)
        if chosen.model:
            name = f"{chosen.provider}/{chosen.model}" if chosen.provider else chosen.model
            run.request = replace(run.request, model=name)


async def carry_out(run: AgentRun) -> None:
    """Carries out a run until the model is done or the time limit is reached.

    Args:
        run: A run that is resolved, with an open transcript.
    """
    if run.request.resume and run.id not in run.transcript.open_runs():
        text = f"This session has no unfinished run {run.id[:80]!r} that could be resumed."
        return run.finish("error", text)
    session, shared = run.session, run.shared
    limit = time_limit(run.agent, run.request)
    clock = anyio.CancelScope(deadline=anyio.current_time() + limit)
    with Trajectory(
        sidecar_path(session.transcript, session.id),
        session_id=session.id,
        session_key=session.key,
        run_id=run.id,
        agent_id=session.agent_id,
        redactor=Redactor(shared.secrets, workspace=run.resolved.workspace, home=Path.home()),
        enabled=run.agent.trace == "on",
    ) as trajectory:
        trajectory.write("session.started", {"trigger": run.trigger})
        recorder = Recorder(run, trajectory, clock.cancel)
        try:
            with clock:
                await _with_tools(run, recorder)
        finally:
            # Also if the run was cancelled: the transcript must say how far it came.
            if recorder.failure is not None:
                run.finish("error", recorder.failure)
            elif clock.cancelled_caught:
                run.finish("timeout", f"The run took longer than {limit:g} s.")
            _record_end(run)
            end: JsonObject = {"status": run.status, "error": run.error}
            end |= {"usage": run.usage.to_json(), "metadata": run.metadata}
            recorder.trace("session.ended", end)


def _record_end(run: AgentRun) -> None:
    """Collects the messages and counts of the run, and records its end in the transcript."""
    said = (it.message for it in run.transcript.entries if it.run_id == run.id)
    run.said = tuple(message for message in said if message is not None)
    if run.turns:
        counts: JsonObject = {"assistantTurns": run.turns, "toolCalls": run.tool_calls}
        run.metadata |= counts | {"modelRequests": run.requests}
    if run.errors:
        run.metadata["modelErrors"] = dict[str, JsonValue](run.errors)
    if run.model is not None:
        run.metadata |= {"provider": run.model.provider, "model": run.model.name}
    if run.shared.closing or run.id not in run.transcript.open_runs():
        return
    try:
        run.transcript.end_run(
            run.id, run.status, error=run.error, usage=run.usage, metadata=run.metadata
        )
    except ClawmodeError as error:
        logger.error("run %s: its end was not recorded: %s", run.id, error)
        if run.status == "ok":
            run.finish("error", str(error))


# ---- Tools ----


async def _with_tools(run: AgentRun, recorder: Recorder) -> None:
    resolved, surface = run.resolved, run.activate()
    if debug_flags().code_mode:
        log(
            "run %s: code mode is %s and %s; the model sees %s; %d tools are in the catalog",
            run.id,
            "enabled" if resolved.agent.tools.code_mode.enabled else "not enabled",
            "engaged" if surface.code_mode else "not engaged",
            ", ".join(tool.name for tool in surface.visible[:50]) or "no tools",
            len(surface.tools) if surface.code_mode or surface.search else 0,
        )
    model = resolved.models[0]
    run.transcript.start_run(
        run.id,
        model=f"{model.provider}/{model.name}",
        trigger=run.trigger,
        code_mode=surface.code_mode,
    )
    if surface.code_mode:
        return await _with_programs(run, recorder)
    executor = Executor(resolved.policy, run.shared.hooks, run.shared.approvals)
    executor.watchers.append(recorder.watch)
    executor.on_question = run.place.step_aside
    if surface.search is None:
        run.metadata |= {"codeModeEngaged": False, "visibleTools": len(surface.tools)}
        return await _converse(run, recorder, DirectTools(surface.tools, executor, run.context))
    async with _search(run, executor) as search:
        try:
            await _converse(run, recorder, search.toolbox, search.directory)
        finally:
            run.metadata |= search.report()


def _search(run: AgentRun, executor: Executor) -> AbstractAsyncContextManager[SearchSurface]:
    def tools() -> tuple[Tool, ...]:
        found = run.resolved.policy.effective(run.offered())
        return tuple(tool for tool in found if not is_control(tool))

    return open_search(
        run.resolved.agent.tools.tool_search,
        tools,
        executor=executor,
        context=run.context,
        pool=run.shared.pool,
        servers=run.shared.servers,
        message=run.request.message,
    )


def code_mode_of(run: AgentRun) -> CodeMode:
    """Returns the code mode of a run whose tools are activated; it is not open yet."""
    shared = run.shared
    return CodeMode(
        tools=(*shared.tools, *run.own, *shared.plugin_tools, *run.request.client_tools),
        mcp_servers=() if shared.servers is None else shared.servers,
        config=run.resolved.agent.tools.code_mode,
        policy=run.resolved.policy,
        hooks=shared.hooks,
        approvals=shared.approvals,
        namespaces=shared.namespaces,
        store=shared.store,
        context=run.context,
        pool=shared.pool,
    )


async def _with_programs(run: AgentRun, recorder: Recorder) -> None:
    async with code_mode_of(run) as code_mode:
        code_mode.watch(recorder.watch)
        code_mode.prefer({call.tool_id for call in run.transcript.nested_calls()})
        code_mode.executor.on_question = run.place.step_aside
        run.programs = code_mode
        toolbox = CodeModeTools(code_mode)
        try:
            await _converse(run, recorder, toolbox)
        finally:
            run.programs = None
            run.metadata |= toolbox.report()
            # A run that is left unfinished needs its parked programs when it is resumed.
            if not run.shared.closing:
                with anyio.CancelScope(shield=True):
                    try:
                        await code_mode.end_run()
                    except ClawmodeError as error:
                        logger.error("parked programs could not be deleted: %s", error)


# ---- The conversation ----


async def _converse(
    run: AgentRun, recorder: Recorder, toolbox: Toolbox, directory: str = ""
) -> None:
    request, transcript = run.request, run.transcript
    if not request.resume:
        recorder.record(UserMessage(content=(Text(request.message), *request.images)))
    elif _is_over(run, recorder):
        return
    messages = transcript.messages()
    prompt = Prompt()
    compactor = None
    if request.raw_model_call:
        messages = messages[-1:]
    else:
        hooks = run.shared.hooks
        before = tuple(messages[:-1])
        shown = PromptBuild(prompt=request.message, run=run.context, messages=before)
        claimed = None
        if hooks.has("before_agent_reply"):
            claimed = await AgentHooks(hooks).claim_reply(shown)
        if claimed is not None:
            silent = claimed.silent or not claimed.text.strip()
            text = Text(SILENT[0] if silent else claimed.text)
            recorder.record(AssistantMessage(content=(text,), provider="hook", model="hook"))
            return run.finish("ok")
        given = replace(await _ingredients(run), directory=directory)
        added = None
        if hooks.has("before_prompt_build", "before_agent_start"):
            added = await AgentHooks(hooks).build_prompt(shown)
        prompt = build(given, added)
        messages = prompt.add_context(messages)
        compactor = Compactor(
            run.agent,
            run.resolved.summarizer,
            transcript,
            run.context,
            hooks,
            run.emit,
        )
    compiled = prompt.trace(toolbox.definitions(), len(messages))
    run.metadata |= {key: compiled[key] for key in ("toolSchemaBytes", "promptBytes")}
    about: JsonObject = {
        "version": __version__,
        "models": [f"{model.provider}/{model.name}" for model in run.resolved.models],
        "thinking": run.agent.thinking,
        "timeoutSeconds": time_limit(run.agent, request),
        "sender": request.sender,
    }
    recorder.trace("trace.metadata", about)
    recorder.trace("context.compiled", compiled)
    recorder.trace("prompt.submitted", {"prompt": request.message, "resumed": request.resume})
    run.intake.open()
    await Loop(
        run=run,
        toolbox=toolbox,
        prompt=prompt,
        messages=messages,
        sink=recorder,
        compactor=compactor,
        known=KnownSecrets(run.shared.secrets),
    ).converse()


def _is_over(run: AgentRun, recorder: Recorder) -> bool:
    """Prepares an interrupted run; returns True if only its end was not recorded."""
    recorder.settle_lost_calls()
    last = run.transcript.open_runs()[run.id].last
    if last is None:
        run.finish("error", NOTHING_SAID)
        return True
    if isinstance(last, AssistantMessage) and not last.calls and last.stop != "aborted":
        run.finish("ok")
        return True
    if isinstance(run.transcript.messages()[-1], AssistantMessage):
        # An answer that was cut off, or another run's: a model expects a user message last.
        recorder.record(UserMessage.of(CONTINUED))
    return False


async def _ingredients(run: AgentRun) -> Ingredients:
    """Returns the parts of the prompt, with the files as the operator's scripts want them."""
    given, operator, context = run.resolved.ingredients, run.shared.operator, run.context
    if operator is None or not operator.has("agent:bootstrap"):
        return given
    about: JsonObject = {
        "agentId": context.agent_id,
        "sessionKey": context.session_key,
        "runId": context.run_id,
    }
    files = await operator.bootstrap(given.files, about, run.resolved.workspace)
    return replace(given, files=files)


# ---- Previews ----


async def preview(run: AgentRun) -> Preview:
    """Returns what the model would get at the beginning of a run."""
    surface, request, model = run.activate(), run.request, run.resolved.models[0]
    messages = tuple(run.transcript.messages())
    shown = PromptBuild(prompt=request.message, run=run.context, messages=messages)
    added = await AgentHooks(run.shared.hooks).build_prompt(shown)
    given = await _ingredients(run)
    async with AsyncExitStack() as opened:
        executor = Executor(run.resolved.policy, run.shared.hooks, run.shared.approvals)
        if surface.code_mode:
            toolbox = CodeModeTools(await opened.enter_async_context(code_mode_of(run)))
        elif surface.search is not None:
            search = await opened.enter_async_context(_search(run, executor))
            toolbox, given = search.toolbox, replace(given, directory=search.directory)
        else:
            toolbox = DirectTools(surface.tools, executor, run.context)
        return Preview(
            session_key=run.session.key,
            model=f"{model.provider}/{model.name}",
            prompt=build(given, added),
            tools=toolbox.definitions(),
            conversation=estimate(messages),
            window=model.limits.context_window,
            room=room_for(run.agent, model),
        )
