"""A chat with an agent of a gateway, over a connection that may be lost.

After a lost connection, the partner looks up in the conversation which messages it missed. So every
message is shown once: while it is written, or later as a whole.
"""

import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any, get_args

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.events import AgentEvent, Listener, Stream
from clawmode.agent.requests import AgentRequest
from clawmode.app.setup import Options
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.messaging.inbox import How
from clawmode.rpc.client import GAP, Event, EventsLost, RpcError
from clawmode.rpc.connection import LOGGER
from clawmode.rpc.presence import RunningGateway
from clawmode.sessions.keys import session_key
from clawmode.tasks import background_tasks
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat import Receipt, reset_error
from clawmode.terminal.chat_prompt import TerminalChannel
from clawmode.terminal.remote_questions import RemoteQuestions
from clawmode.terminal.remote_turn import ABORT_SECONDS, RemoteTurn, rejections
from clawmode.terminal.turn import WaitingRun
from clawmode.tools.approvals import Mode
from clawmode.types import JsonObject, dataclass

POLL_SECONDS = 0.3
RETRY_SECONDS = 1.0
"""The pause before a line is sent again to a gateway that restarts."""

LEAVE_SECONDS = 5.0
"""How long to wait at the end for a line that is being sent."""

RESULT_MS = 10_000
MAX_HISTORY, MAX_SENT, MAX_DONE = 1_000, 50, 200

LOST = "the connection is lost; reconnecting"
STOPS = "the gateway is stopping"
MISSED = "(the connection was lost; the missed messages follow)"
BEGUN = "Started a new conversation."

HOWS: tuple[How, ...] = get_args(How)


@dataclass(slots=True)
class _ActiveRun:
    """A run that has not ended.

    Attributes:
        incomplete: True if text of the present message was missed. The message is then shown when
            it is complete.
        looked_up: Messages that were looked up, and for which events may still come.
    """

    incomplete: bool = False
    looked_up: list[str] = field(default_factory=list[str])


class RemotePartner(RemoteTurn):
    """An agent that runs in a gateway, and continues without the chat.

    Attributes:
        trouble: Why the gateway cannot be reached now; empty if it can.
        waiting: The last known number of messages that wait.
    """

    client_id = "clawmode-chat"
    opening = "… connecting to the gateway"
    _watch: Listener
    _tell: Callable[[str], None]
    _changed: Callable[[], None]
    _key: str

    def __init__(self, options: Options, gateway: RunningGateway) -> None:
        super().__init__(options, gateway)
        self.trouble, self.waiting, self._stopping = "", 0, False
        self._runs: dict[str, _ActiveRun] = {}
        self._shown: Counter[tuple[str, str]] = Counter()  # how often, by run and text
        self._sent: deque[str] = deque(maxlen=MAX_SENT)  # ids of runs that this chat started
        self._done: deque[str] = deque(maxlen=MAX_DONE)  # ids of runs whose end was looked up
        self._sending = ""
        self._begins = False  # whether the line that was sent last begins a conversation
        self._arrived = anyio.Event()

    # ---- The start ----

    def attach(
        self, watch: Listener, channel: TerminalChannel, changed: Callable[[], None]
    ) -> None:
        self._watch, self._tell, self._changed = watch, channel.tell, changed

    def prepare(self, request: AgentRequest, view: AgentView) -> Mode:
        # The line below the prompt shows whether the client is connected; the log would repeat it.
        logging.getLogger(LOGGER).addFilter(lambda record: False)
        return super().prepare(request, view)

    async def start(self, request: AgentRequest) -> WaitingRun:
        """Finds or creates the session, and changes its model if the request names one.

        Raises:
            ConfigurationError: There is no such session, agent or model.
        """
        client = self._client
        with rejections():
            if request.session_id:
                agent: JsonObject = {"agentId": request.agent_id} if request.agent_id else {}
                given: JsonObject = {"sessionId": request.session_id, **agent}
                found: Any = (await client.call("sessions.get", given))["session"]
                if not found["current"]:
                    raise reset_error(found["sessionId"], found["key"])
                key = str(found["key"])
            else:
                key = await self._find_by_key(request)
            await client.follow(key)
            if request.model:
                await client.call("sessions.patch", {"sessionKey": key, "model": request.model})
            self._key = key
            # Old messages count as shown. Looked up before the first line, whose run may end soon.
            messages, active = await self._messages_by_run(), await self._active_runs()
            for run_id in messages.keys() - set(active):
                self._shown.update((run_id, text) for text in messages[run_id])
        self._questions = RemoteQuestions(client, self._approvals, sessionKey=key)
        return WaitingRun(request=request, run_id="", session_key=key, session_id="")

    async def _find_by_key(self, request: AgentRequest) -> str:
        client, wanted = self._client, request.session_key
        known: dict[str, Any] = await client.call("agents.list")
        default = None if wanted.lower().startswith("agent:") else str(known["defaultId"])
        key = session_key(wanted or None, request.agent_id or default)
        owner = key.split(":")[1]
        names = [agent["id"] for agent in known["agents"]]
        if owner not in names:
            raise ConfigurationError(
                f"the gateway has no agent {owner!r}; it has: {', '.join(names)}"
            )
        try:
            await client.call("sessions.get", {"sessionKey": key})
        except RpcError as error:
            if error.code != "NOT_FOUND":
                raise
            await client.call("sessions.create", {"sessionKey": key})
        return key

    # ---- For the chat ----

    async def model(self) -> str:
        """Returns the session's model, or its agent's."""
        about: Any = await self._client.call("sessions.get", {"sessionKey": self._key})
        session = about["session"]
        if session["model"]:
            return str(session["model"])
        known: dict[str, Any] = await self._client.call("agents.list")
        found = (agent["model"] for agent in known["agents"] if agent["id"] == session["agentId"])
        return next(found, "") or "no model"

    async def send(self, text: str) -> Receipt:
        """Sends a message or a command; waits for a gateway that cannot be reached."""
        given: JsonObject = {"sessionKey": self._key, "message": text}
        given["idempotencyKey"] = uuid.uuid4().hex
        self._sending, self._arrived = text, anyio.Event()
        self._begins = text.split(maxsplit=1)[0].lower() in ("/new", "/reset")
        try:
            while True:
                try:
                    answer = await self._client.call("chat.send", given, timeout=None)
                    break
                except RpcError as error:
                    if error.code != "UNAVAILABLE" or not self._stopping:
                        raise
                # A gateway that stops accepts nothing; its successor will.
                await anyio.sleep(RETRY_SECONDS)
            self._sending = ""
            how: How = next((how for how in HOWS if how == answer.get("status")), "started")
            if run_id := str(answer.get("runId") or ""):
                self._sent.append(run_id)
            if self.waiting or how != "started":
                await self._count_waiting()
            begun = BEGUN if self._begins and how != "command" else ""
            return Receipt(how, str(answer.get("text", begun)))
        finally:
            self._sending = ""
            self._arrived.set()  # the chat shows the receipt before another task runs

    async def stop(self) -> int:
        if not self._client.connected:
            return 0
        given: JsonObject = {"sessionKey": self._key}
        answer: dict[str, Any] = await self._client.call("chat.abort", given, timeout=ABORT_SECONDS)
        return int(answer["aborted"])

    async def leave(self, say: Callable[[str], None]) -> bool:
        """Waits for a line that is being sent. Runs continue in the gateway."""
        if self._sending:
            with anyio.move_on_after(LEAVE_SECONDS if self._client.connected else 0):
                await self._arrived.wait()
        if self._sending:
            say(f"This message may not have reached the gateway: {self._sending}")
        elif self._runs or self.waiting:
            say(f"The run continues in the gateway: clawmode chat --session {self._key}")
        return True

    async def serve(self) -> None:
        """Shows the events of the gateway, and asks its questions.

        Raises:
            ClawmodeError: The gateway rejects the connection.
        """
        async with background_tasks() as tasks:
            tasks.start_soon(self._watch_connection)
            await self._catch_up(tasks, first=True)
            while True:
                try:
                    async for event in self._events:
                        await self._handle(event, tasks)
                except EventsLost:
                    self._events = self._client.events()
                    await self._catch_up(tasks)

    # ---- Events ----

    async def _watch_connection(self) -> None:
        while True:
            trouble = (STOPS if self._stopping else "") if self._client.connected else LOST
            if trouble != self.trouble:
                self.trouble = trouble
                self._changed()
            await anyio.sleep(POLL_SECONDS)

    async def _handle(self, event: Event, tasks: TaskGroup) -> None:
        if event.name == GAP:
            self._stopping = False
            await self._catch_up(tasks)
        elif event.name == "shutdown":
            self._stopping = True
        elif event.name == "agent":
            run_event = AgentEvent.read(event.payload)
            if run_event and run_event.session_key == self._key:
                await self._handle_run(run_event, tasks)
        else:
            self._questions.take(event, tasks)

    async def _handle_run(self, event: AgentEvent, tasks: TaskGroup) -> None:
        run = self._runs.get(event.run_id)
        phase = event.data.get("phase") if event.stream == "lifecycle" else None
        if event.run_id in self._done or (run is not None and phase == "start"):
            return  # `_catch_up` has shown it
        if phase is not None and self.waiting:
            tasks.start_soon(self._count_waiting)
        if phase == "start":
            if self._begins:  # the events may overtake the response, which is to be shown first
                await self._arrived.wait()
            self._runs[event.run_id] = _ActiveRun()
            self._watch(event)
        elif phase is not None:
            if run is not None and run.incomplete:
                try:
                    texts = (await self._messages_by_run()).get(event.run_id, [])
                    self._show_missed(event.run_id, texts)
                except ClawmodeError as error:
                    self._tell(f"cannot fetch the messages of the run: {error}")
            self._runs.pop(event.run_id, None)
            self._watch(event)
            self._show_result(event.run_id, await self._result(event.run_id, RESULT_MS) or {})
        elif run is not None and run.incomplete and event.stream == "assistant":
            self._complete_message(run, event)
        elif run is not None:
            if text := str(event.data.get("message") or "").strip():
                self._shown[event.run_id, text] += 1
            self._watch(event)

    def _complete_message(self, run: _ActiveRun, event: AgentEvent) -> None:
        """Shows a message that was interrupted by a lost connection, once it is complete."""
        if "message" not in event.data:
            return
        text = str(event.data["message"] or "").strip()
        if text in run.looked_up:
            del run.looked_up[: run.looked_up.index(text) + 1]
        else:
            run.looked_up.clear()
            self._show_message(event.run_id, text)
        run.incomplete = bool(run.looked_up)

    async def _result(self, run_id: str, wait_ms: int) -> dict[str, Any] | None:
        """Fetches the result of a run; None if the run has none yet, or is unknown."""
        given: JsonObject = {"runId": run_id, "timeoutMs": wait_ms}
        try:
            answer: dict[str, Any] = await self._client.call("agent.wait", given)
        except RpcError as error:
            if error.code != "NOT_FOUND":
                self._tell(f"cannot fetch the result of the run: {error}")
            return None
        return answer.get("result")

    def _show_result(self, run_id: str, result: dict[str, Any]) -> None:
        """Shows the texts of a result that were not part of the model's messages."""
        if result.get("status") != "aborted" or result.get("error"):
            for payload in result.get("payloads") or ():
                text = str(payload.get("text", "")).strip()
                if text and not self._shown[run_id, text]:
                    self._shown[run_id, text] += 1
                    is_reasoning = payload.get("kind") == "reasoning"
                    self._tell(f"Reasoning:\n{text}" if is_reasoning else text)
        if run_id in self._sent:
            self._sent.remove(run_id)

    # ---- After a lost connection ----

    async def _catch_up(self, tasks: TaskGroup, *, first: bool = False) -> None:
        """Shows the messages, runs and questions that were missed without a connection."""
        try:
            # Followed first: events that come during the requests below are not missed.
            await self._client.follow(self._key)
            # Messages before runs: a run that has messages but is not active has ended.
            messages, active = await self._messages_by_run(), await self._active_runs()
            if not first and any(self._missed(run, texts) for run, texts in messages.items()):
                self._tell(MISSED)
            await self._show_missed_runs(messages, active)
            await self._questions.refresh(tasks)
        except RpcError as error:
            self._tell(f"cannot fetch the missed messages: {error}")
        self._changed()

    async def _show_missed_runs(self, messages: dict[str, list[str]], active: list[str]) -> None:
        known = [*self._runs, *self._sent]
        for run_id in self._runs:
            self._emit(run_id, "lifecycle", {"phase": "end"})
        self._runs.clear()
        for run_id in dict.fromkeys((*messages, *known, *active)):
            texts = messages.get(run_id, [])
            if run_id in active:
                self._emit(run_id, "lifecycle", {"phase": "start"})
                looked_up = self._show_missed(run_id, texts)
                self._runs[run_id] = _ActiveRun(incomplete=True, looked_up=looked_up)
            elif run_id in known or self._missed(run_id, texts):
                result = await self._result(run_id, 0)
                failure: JsonObject = {key: (result or {}).get(key) for key in ("status", "error")}
                if failure["error"] or self._missed(run_id, texts):
                    self._emit(run_id, "lifecycle", {"phase": "start"})
                    self._show_missed(run_id, texts)
                    self._emit(run_id, "lifecycle", {"phase": "end", **failure})
                if result is not None:  # otherwise the run still waits, and its events will come
                    self._show_result(run_id, result)
                    self._done.append(run_id)

    def _show_missed(self, run_id: str, texts: list[str]) -> list[str]:
        """Shows and returns the messages of a run that were not shown yet."""
        missed = self._missed(run_id, texts)
        for text in missed:
            self._show_message(run_id, text)
        return missed

    def _missed(self, run_id: str, texts: list[str]) -> list[str]:
        """Returns the messages of a run that were not shown yet; equal messages are counted."""
        count: Counter[str] = Counter()
        missed: list[str] = []
        for text in texts:
            count[text] += 1
            missed += [text] if count[text] > self._shown[run_id, text] else []
        return missed

    def _show_message(self, run_id: str, text: str) -> None:
        self._shown[run_id, text] += 1
        self._emit(run_id, "assistant", {"delta": text})
        self._emit(run_id, "assistant", {"message": text})

    def _emit(self, run_id: str, stream: Stream, data: JsonObject) -> None:
        """Gives the chat an event that was looked up, like one that came just now."""
        key = self._key
        self._watch(AgentEvent(run_id=run_id, seq=0, stream=stream, data=data, session_key=key))

    # ---- Requests ----

    async def _active_runs(self) -> list[str]:
        """Fetches the ids of active runs, and the number of waiting messages."""
        about: Any = await self._client.call("sessions.get", {"sessionKey": self._key})
        self.waiting = len(about["waiting"])
        return [str(run["runId"]) for run in about["runs"]]

    async def _count_waiting(self) -> None:
        """Fetches the number of waiting messages: no event reports it."""
        with suppress(ClawmodeError):  # the next event of a run fetches it again
            await self._active_runs()
            self._changed()

    async def _messages_by_run(self) -> dict[str, list[str]]:
        """Fetches the latest messages of the model, by run."""
        given: JsonObject = {"sessionKey": self._key, "limit": MAX_HISTORY}
        history: dict[str, Any] = await self._client.call("chat.history", given)
        found: dict[str, list[str]] = {}
        for message in history["messages"]:
            parts = [part["text"] for part in message["content"] if part["type"] == "text"]
            if message["role"] == "assistant" and (text := "".join(parts).strip()):
                found.setdefault(str(message["runId"]), []).append(text)
        return found
