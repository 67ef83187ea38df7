"""One session of an ACP client: its agent in this process, and its prompts."""

import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from acp import schema
from acp.exceptions import RequestError

from clawmode.agent.events import AgentEvent, EventQueue
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.app.host import Host, open_host
from clawmode.app.setup import Setup
from clawmode.config.resolve import Configuration
from clawmode.messages import AssistantMessage, Image, Usage
from clawmode.sandbox.pool import Pool
from clawmode.sessions.history import read_transcript
from clawmode.sessions.sanitize import bounded
from clawmode.sessions.store import Session
from clawmode.tasks import background_tasks
from clawmode.terminal import acp_updates
from clawmode.terminal.acp_questions import Editor, Questions
from clawmode.text import one_line
from clawmode.tools.approvals import Mode
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.acp")

CHANNEL = "acp"
FAILED = -32603
LEAVE_SECONDS = 5.0
"""How long to wait at the end for a run to stop."""

LAST = -1_000_000
"""The priority of our hook: it sees the input that the other hooks have left."""

TOO_SLOW = "the editor does not read its events"

MODES: dict[Mode, tuple[str, str]] = {
    "ask": ("Ask", "You are asked before a tool changes something."),
    "always": ("Allow", "Tools change things unasked, except for what hooks and rules ask about."),
    "never": ("Read only", "Calls of tools that change something are denied."),
}


def in_folder(configuration: Configuration) -> Configuration:
    """Returns a configuration that names no workspaces: a session works in the client's folder."""
    agents = configuration.agents
    nowhere: JsonObject = {"workspace": None}
    bare = {
        "defaults": agents.defaults.model_copy(update=nowhere),
        "list": tuple(entry.model_copy(update=nowhere) for entry in agents.list),
    }
    return configuration.model_copy(update={"agents": agents.model_copy(update=bare)})


class EditorSession:
    """A session that is open in a client.

    Args:
        session: The stored session.
        setup: The settings for its folder.
        editor: The client.
        mode: Who decides about calls that may change something.
        model: `provider/model`, instead of the agent's; empty for the agent's.

    Attributes:
        modes: The modes that the client may choose from, the current one first.
    """

    def __init__(
        self, session: Session, setup: Setup, editor: Editor, mode: Mode, model: str = ""
    ) -> None:
        self.id = session.id
        self._session = session
        self._setup = replace(setup, configuration=in_folder(setup.configuration))
        self._editor = editor
        self._model = model
        self._calls = acp_updates.Calls(setup.here)
        self._questions = Questions(session.id, editor, self._calls, setup.here)
        self._queues: dict[str, EventQueue] = {}
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        # A client cannot lift a prohibition of the configuration or of the command line.
        self.modes: tuple[Mode, ...] = ("never",) if mode == "never" else tuple(MODES)
        self.set_mode(mode)
        self._host: Host

    # ---- Opening and closing ----

    @asynccontextmanager
    async def opened(self, pool: Pool) -> AsyncIterator[None]:
        """Opens the agent with its tools and servers, inside of the block."""
        approvals, here = self._questions.approvals, self._setup.here
        async with (
            open_host(self._setup, approvals, workspace=here, pool=pool) as host,
            background_tasks() as self._questions.tasks,
        ):
            self._host = host
            host.hooks.before_tool_call(self._note_input, priority=LAST, name="ACP client")
            host.hooks.after_tool_call(self._note_output, priority=LAST, name="ACP client")
            unsubscribe = host.runtime.subscribe(self._watch)
            try:
                yield
            finally:
                unsubscribe()

    async def stay_open(self) -> None:
        """Waits until the session is closed, and stops what still runs."""
        await self._closing.wait()
        runs = self._host.runtime.under_way(self._session.key)
        self.cancel()
        with anyio.move_on_after(LEAVE_SECONDS):
            for run in runs:
                await run.ended.wait()

    def mark_closed(self) -> None:
        """Records that the block of `opened` has ended."""
        self._closed.set()

    async def close(self) -> None:
        """Stops what runs, and waits until the agent, its tools and its servers have ended."""
        self._closing.set()
        await self._closed.wait()

    # ---- Prompts ----

    def set_mode(self, mode: Mode) -> None:
        """Chooses who decides about calls that may change something."""
        self._questions.approvals.mode = lambda agent_id: mode
        self.modes = (mode, *(each for each in self.modes if each != mode))

    async def replay(self) -> None:
        """Sends the transcript as updates."""
        if not self._session.transcript.exists():
            return  # no prompt was sent yet
        history = await anyio.to_thread.run_sync(read_transcript, self._session.transcript)
        for update in acp_updates.replay(history.entries, self._setup.here):
            await self._editor.update(self.id, update)

    async def prompt(self, text: str, images: Sequence[Image]) -> schema.PromptResponse:
        """Runs a turn, and sends its events as updates.

        Raises:
            RequestError: The turn failed.
            ClawmodeError: The prompt is invalid.
        """
        runtime = self._host.runtime
        run_id = uuid.uuid4().hex
        queue = EventQueue(lambda: runtime.abort(run_id, TOO_SLOW))
        self._queues[run_id] = queue
        request = AgentRequest(
            message=text,
            images=tuple(images),
            session_id=self._session.id,
            agent_id=self._session.agent_id,
            run_id=run_id,
            model=self._model,
            channel=CHANNEL,
        )
        spoke, stop, used = False, "", 0
        try:
            run = await runtime.start(request)
            ended = False
            while not ended:
                event = await queue.get()
                for update in acp_updates.updates_of(event, self._calls):
                    spoke = spoke or isinstance(update, schema.AgentMessageChunk)
                    await self._editor.update(self.id, update)
                if ended := event.stream == "lifecycle" and event.data.get("phase") != "start":
                    stop, used = str(event.data["stop"]), int(str(event.data["used"]))
            result = await runtime.result(run_id)
            why = stop_reason(result, stop)
            text_left = result.output if why == "end_turn" and not spoke else ""  # a hook answered
            if why == "max_turn_requests":
                text_left = f"\n\n{result.error}"
            if text_left:
                await self._editor.update(self.id, acp_updates.chunk_of("agent", text_left))
            for update in self._calls.abandon():
                await self._editor.update(self.id, update)
            if run.model is not None and used:
                size = run.model.limits.context_window
                about = schema.UsageUpdate(session_update="usage_update", used=used, size=size)
                await self._editor.update(self.id, about)
            await self._set_title(text)
            usage = usage_of(Usage.from_json(result.usage))
            return schema.PromptResponse(stop_reason=why, usage=usage)
        finally:
            del self._queues[run_id]
            runtime.abort(run_id)  # the client is gone, or its update could not be sent

    async def _set_title(self, text: str) -> None:
        if self._session.title:
            return
        title = one_line(text, acp_updates.MAX_TITLE_CHARS)
        sessions = self._host.runtime.sessions
        self._session = await sessions.touch(self._session.id, title=title)
        about = schema.SessionInfoUpdate(session_update="session_info_update", title=title)
        await self._editor.update(self.id, about)

    def cancel(self) -> None:
        """Stops the running prompt and those that wait for it; withdraws their questions."""
        self._host.runtime.stop(self._session.key)

    # ---- Events, which must not block ----

    def _watch(self, event: AgentEvent) -> None:
        queue = self._queues.get(event.run_id)
        if queue is None:
            return
        if event.stream == "lifecycle" and event.data.get("phase") != "start":
            # The messages of a run are dropped when this event was emitted.
            run = self._host.runtime.find(event.run_id)
            said = run.said if run is not None else ()
            last = next((it for it in reversed(said) if isinstance(it, AssistantMessage)), None)
            about: JsonObject = {"stop": "", "used": 0}
            if last is not None:
                about = {"stop": last.stop, "used": usage_of(last.usage).total_tokens}
            event = replace(event, data={**event.data, **about})
        queue.put(event)

    def _note_input(self, call: BeforeToolCall) -> None:
        self._note(call, {"phase": "input", "args": bounded(call.params)})

    def _note_output(self, ended: AfterToolCall) -> None:
        failed: JsonObject = {"error": ended.error}
        result = failed if ended.result is None else ended.result.value
        self._note(ended.call, {"phase": "output", "result": bounded(result)})

    def _note(self, call: BeforeToolCall, data: JsonObject) -> None:
        """Adds what the events of nested calls leave out."""
        queue = self._queues.get(call.run.run_id)
        if queue is not None and call.parent_id is not None:
            about: JsonObject = {**data, "callId": call.tool_call_id, "name": call.tool_id}
            queue.put(AgentEvent(run_id=call.run.run_id, seq=0, stream="tool", data=about))


def usage_of(usage: Usage) -> schema.Usage:
    """Returns token counts as the client reads them."""
    return schema.Usage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cached_read_tokens=usage.cache_read,
        cached_write_tokens=usage.cache_write,
        total_tokens=usage.input + usage.output + usage.cache_read + usage.cache_write,
    )


def stop_reason(result: RunResult, stop: str) -> schema.StopReason:
    """Returns why a turn ended.

    Args:
        result: The result of the turn.
        stop: Why the last answer of the model ended.

    Raises:
        RequestError: The turn failed.
    """
    if result.status == "aborted" and result.error != TOO_SLOW:
        return "cancelled"
    if result.problem in ("too_many_turns", "repeats"):
        return "max_turn_requests"
    if result.status == "ok":
        reasons: dict[str, schema.StopReason] = {"length": "max_tokens", "refused": "refusal"}
        return reasons.get(stop, "end_turn")
    if result.problem == "refused":
        return "refusal"
    error = acp_updates.printable_value(result.error or result.status)
    raise RequestError(FAILED, str(error), {"status": result.status, "problem": result.problem})
