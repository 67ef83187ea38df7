"""A chat with an agent of a gateway: what `Chat` needs of it, over a connection that may be lost.

What was missed meanwhile is looked up in the conversation, message by message. So everything that
is said is shown once: as it comes, or afterwards as a whole.
"""

import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.events import AgentEvent, Listener, Stream
from clawmode.exceptions import ClawmodeError
from clawmode.messaging.inbox import How
from clawmode.rpc.client import GAP, Event, EventsLost, GatewayClient, RpcError
from clawmode.terminal.chat import Heard
from clawmode.terminal.chat_prompt import ChatDesk
from clawmode.terminal.remote_questions import RemoteQuestions
from clawmode.terminal.remote_turn import read_event
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject

LOOK_SECONDS = 0.3
AGAIN_SECONDS = 1.0
"""Between two times that a line is sent to a gateway that stops."""

ABORT_SECONDS = 10.0
LEAVE_SECONDS = 5.0
"""How long a line may take that is on its way when one leaves."""

RESULT_MS = 10_000
MAX_HISTORY = 1_000
MAX_SENT = 50
MAX_DONE = 200

LOST = "the connection is lost, and tried again"
STOPS = "the gateway stops"
MISSED = "(the connection was lost meanwhile: what was missed follows)"
BEGUN = "Started a new conversation."

HOWS: tuple[How, ...] = ("started", "steered", "queued", "dropped", "command", "repeated")


class RemoteChatDesk(ChatDesk):
    """Puts the questions of a gateway in a chat."""

    until = "the gateway stops"


class SessionQuestions(RemoteQuestions):
    """Has the questions of all runs of a session answered.

    Args:
        client: The gateway's.
        approvals: Who answers.
        key: The session.
    """

    def __init__(self, client: GatewayClient, approvals: Approvals, key: str) -> None:
        super().__init__(client, approvals, "")
        self._key = key
        self._taken: set[str] = set()

    def is_new(self, event: Event) -> bool:
        """Whether somebody has to be asked; what was answered elsewhere is taken away."""
        question_id = str(event.payload.get("id"))
        if not event.name.endswith(".requested"):
            return super().is_new(event)
        if event.payload.get("sessionKey") != self._key or question_id in self._taken:
            return False
        self._taken.add(question_id)
        return True

    async def ask_again(self) -> list[Event]:
        """Those that somebody has to be asked; what nobody waits for any more is taken away."""
        waiting = await self.waiting()
        ids = {str(event.payload.get("id")) for event in waiting}
        for question_id, scope in self._open.items():
            if question_id not in ids:
                scope.cancel()
        self._taken &= set(self._open)  # not those whose answer was lost
        return [event for event in waiting if self.is_new(event)]


@dataclass(slots=True)
class _Seen:
    """A run that is under way.

    Attributes:
        torn: Whether words are missing of what is being said: then it is shown when it is whole.
        again: What was looked up, and may still be told.
    """

    torn: bool = False
    again: list[str] = field(default_factory=list[str])


class RemotePartner:
    """An agent that runs in a gateway, and goes on without the chat.

    Args:
        client: The gateway's.
        key: The session, which the client follows.
        questions: Has them answered.

    Attributes:
        trouble: Why it cannot be talked with now.
        waiting: How many messages wait, as far as is known.
    """

    def __init__(self, client: GatewayClient, key: str, questions: SessionQuestions) -> None:
        self._client = client
        self._key = key
        self._questions = questions
        self._events = client.events()
        self._watch: Listener = lambda event: None
        self._tell: Callable[[str], None] = lambda text: None
        self._changed: Callable[[], None] = lambda: None
        self.trouble = ""
        self.waiting = 0
        self._stops = False
        self._runs: dict[str, _Seen] = {}
        self._shown: Counter[tuple[str, str]] = Counter()
        self._sent: deque[str] = deque(maxlen=MAX_SENT)
        self._done: deque[str] = deque(maxlen=MAX_DONE)
        self._sending = ""
        self._arrived = anyio.Event()

    # ---- For the chat ----

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Wants to see what runs do, to be told what is said beside, and when the rest changes."""
        self._watch, self._tell, self._changed = watch, tell, changed
        return lambda: self._events.close()  # it may be another one by then

    async def model(self) -> str:
        """Who answers: the session's model, or its agent's."""
        session = (await self._about())["session"]
        if session["model"]:
            return str(session["model"])
        known: dict[str, Any] = await self._client.call("agents.list")
        found = (it["model"] for it in known["agents"] if it["id"] == session["agentId"])
        return next(found, "") or "no model"

    async def receive(self, text: str) -> Heard:
        """Says something. While the gateway is away, that waits for it."""
        given: JsonObject = {"sessionKey": self._key, "message": text}
        given["idempotencyKey"] = uuid.uuid4().hex
        self._sending, self._arrived = text, anyio.Event()
        try:
            answer = await self._send(given)
        finally:
            self._sending = ""
            self._arrived.set()
        how: How = next((it for it in HOWS if it == answer.get("status")), "started")
        if run_id := str(answer.get("runId") or ""):
            self._sent.append(run_id)
        if self.waiting or how != "started":
            await self._count()
        begins = how != "command" and text.split(maxsplit=1)[0].lower() in ("/new", "/reset")
        return Heard(how, str(answer.get("text", BEGUN if begins else "")))

    async def _send(self, given: JsonObject) -> JsonObject:
        while True:
            try:
                return await self._client.call("chat.send", given, timeout=None)
            except RpcError as error:
                if error.code != "UNAVAILABLE" or not self._stops:
                    raise
            await anyio.sleep(AGAIN_SECONDS)  # the next one takes it

    async def stop(self) -> int:
        """Stops what runs, and drops what waits. Without a connection nothing can be stopped."""
        if not self._client.connected:
            return 0
        given: JsonObject = {"sessionKey": self._key}
        answer: dict[str, Any] = await self._client.call("chat.abort", given, timeout=ABORT_SECONDS)
        return int(answer["aborted"])

    async def leave(self, say: Callable[[str], None]) -> None:
        """Waits for what is on its way. What runs goes on."""
        if self._sending:
            with anyio.move_on_after(LEAVE_SECONDS if self._client.connected else 0):
                await self._arrived.wait()
        if self._sending:
            say(f"The gateway may not have got: {self._sending}")
        elif self._runs or self.waiting:
            say(f"The run goes on in the gateway: clawmode chat --session {self._key}")

    async def serve(self) -> None:
        """Hears what the gateway tells.

        Raises:
            ClawmodeError: It lets us in no more.
        """
        failure: ClawmodeError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look)
            try:
                await self._catch_up(tasks, first=True)
                while True:
                    await self._hear_all(tasks)
            except ClawmodeError as error:  # else it would come out in a group
                failure = error
            tasks.cancel_scope.cancel()
        assert failure is not None
        raise failure

    # ---- What is told ----

    async def _look(self) -> None:
        """Sees whether there is a connection."""
        while True:
            trouble = (STOPS if self._stops else "") if self._client.connected else LOST
            if trouble != self.trouble:
                self.trouble = trouble
                self._changed()
            await anyio.sleep(LOOK_SECONDS)

    async def _hear_all(self, tasks: TaskGroup) -> None:
        try:
            async for event in self._events:
                await self._hear(event, tasks)
        except EventsLost:
            self._events = self._client.events()
            await self._catch_up(tasks)

    async def _hear(self, event: Event, tasks: TaskGroup) -> None:
        if event.name == GAP:
            self._stops = False
            await self._catch_up(tasks)
        elif event.name == "shutdown":
            self._stops = True
        elif event.name == "agent":
            if (told := read_event(event.payload)) is not None and told.session_key == self._key:
                await self._take(told, tasks)
        elif self._questions.is_new(event):
            tasks.start_soon(self._questions.answer, event)

    async def _take(self, event: AgentEvent, tasks: TaskGroup) -> None:
        run = self._runs.get(event.run_id)
        phase = event.data.get("phase") if event.stream == "lifecycle" else None
        if event.run_id in self._done or (run is not None and phase == "start"):
            return  # it was looked up
        if phase is not None and self.waiting:
            tasks.start_soon(self._count)
        if phase == "start":
            self._runs[event.run_id] = _Seen()
            self._watch(event)
        elif phase is not None:
            await self._end(event, torn=run is not None and run.torn)
        elif run is not None and run.torn and event.stream == "assistant":
            self._mend(run, event)
        elif run is not None:
            if text := str(event.data.get("message") or "").strip():
                self._shown[event.run_id, text] += 1
            self._watch(event)

    def _mend(self, run: _Seen, event: AgentEvent) -> None:
        """What was being said when the connection was lost is shown when it is whole."""
        if "message" not in event.data:
            return
        text = str(event.data["message"] or "").strip()
        if text in run.again:
            del run.again[: run.again.index(text) + 1]
        else:
            run.again.clear()
            self._say_whole(event.run_id, text)
        run.torn = bool(run.again)

    async def _end(self, event: AgentEvent, *, torn: bool) -> None:
        if torn:
            try:
                self._show_missed(event.run_id, (await self._said()).get(event.run_id, []))
            except ClawmodeError as error:
                self._tell(f"what the run said cannot be seen: {error}")
        self._runs.pop(event.run_id, None)
        self._watch(event)
        self._conclude(event.run_id, await self._result(event.run_id, RESULT_MS) or {})

    async def _result(self, run_id: str, wait_ms: int) -> dict[str, Any] | None:
        """What came of a run; None if nothing did yet, or it is none."""
        given: JsonObject = {"runId": run_id, "timeoutMs": wait_ms}
        try:
            answer: dict[str, Any] = await self._client.call("agent.wait", given)
        except RpcError as error:
            if error.code != "NOT_FOUND":
                self._tell(f"what came of the run cannot be seen: {error}")
            return None
        return answer.get("result")

    def _conclude(self, run_id: str, result: dict[str, Any]) -> None:
        """Tells what came of a run, and was not said by its model."""
        if result.get("status") != "aborted" or result.get("error"):
            for payload in result.get("payloads") or ():
                self._tell_new(run_id, payload)
        if run_id in self._sent:
            self._sent.remove(run_id)

    def _tell_new(self, run_id: str, payload: dict[str, Any]) -> None:
        text = str(payload.get("text", "")).strip()
        if text and not self._shown[run_id, text]:
            self._shown[run_id, text] += 1
            self._tell(f"Reasoning:\n{text}" if payload.get("kind") == "reasoning" else text)

    # ---- What was missed ----

    async def _catch_up(self, tasks: TaskGroup, *, first: bool = False) -> None:
        """Looks up what was told while nobody listened."""
        try:
            await self._client.follow(self._key)  # before it is looked: nothing falls in between
            # First what was said: who is in it has begun, and is under way or has ended.
            said, about = await self._said(), await self._about()
            under_way = [str(run["runId"]) for run in about["runs"]]
            self.waiting = len(about["waiting"])
            if first:
                before = {run: texts for run, texts in said.items() if run not in under_way}
                self._shown.update((run, it) for run, texts in before.items() for it in texts)
            elif any(self._missed(run, texts) for run, texts in said.items()):
                self._tell(MISSED)
            await self._look_up(said, under_way)
            for event in await self._questions.ask_again():
                tasks.start_soon(self._questions.answer, event)
        except RpcError as error:
            self._tell(f"what was missed cannot be seen: {error}")
        self._changed()

    async def _look_up(self, said: dict[str, list[str]], under_way: list[str]) -> None:
        known = [*self._runs, *self._sent]
        for run_id in self._runs:
            self._emit(run_id, "lifecycle", {"phase": "end"})
        self._runs.clear()
        for run_id in dict.fromkeys((*said, *known, *under_way)):
            texts = said.get(run_id, [])
            if run_id in under_way:
                self._emit(run_id, "lifecycle", {"phase": "start"})
                again = self._show_missed(run_id, texts)
                self._runs[run_id] = _Seen(torn=True, again=again)
            elif run_id in known or self._missed(run_id, texts):
                await self._look_up_ended(run_id, texts)

    async def _look_up_ended(self, run_id: str, texts: list[str]) -> None:
        result = await self._result(run_id, 0)
        failure: JsonObject = {key: (result or {}).get(key) for key in ("status", "error")}
        if failure["error"] or self._missed(run_id, texts):
            self._emit(run_id, "lifecycle", {"phase": "start"})
            self._show_missed(run_id, texts)
            self._emit(run_id, "lifecycle", {"phase": "end", **failure})
        if result is not None:  # else it begins later, and that is told
            self._conclude(run_id, result)
            self._done.append(run_id)

    def _show_missed(self, run_id: str, texts: list[str]) -> list[str]:
        """Shows what was not seen of a run; what that was."""
        missed = self._missed(run_id, texts)
        for text in missed:
            self._say_whole(run_id, text)
        return missed

    def _missed(self, run_id: str, texts: list[str]) -> list[str]:
        missed: list[str] = []
        count: Counter[str] = Counter()
        for text in texts:
            count[text] += 1
            if count[text] > self._shown[run_id, text]:
                missed.append(text)
        return missed

    # ---- What is shown ----

    def _say_whole(self, run_id: str, text: str) -> None:
        self._shown[run_id, text] += 1
        self._emit(run_id, "assistant", {"delta": text})
        self._emit(run_id, "assistant", {"message": text})

    def _emit(self, run_id: str, stream: Stream, data: JsonObject) -> None:
        """Shows what is known of a run as if it were told now."""
        key = self._key
        self._watch(AgentEvent(run_id=run_id, seq=0, stream=stream, data=data, session_key=key))

    # ---- What is asked ----

    async def _about(self) -> dict[str, Any]:
        return await self._client.call("sessions.get", {"sessionKey": self._key})

    async def _count(self) -> None:
        """How many messages wait is told by nobody."""
        try:
            self.waiting = len((await self._about())["waiting"])
        except ClawmodeError:
            return  # it is looked again
        self._changed()

    async def _said(self) -> dict[str, list[str]]:
        """What the model has said in each run, of those of late."""
        given: JsonObject = {"sessionKey": self._key, "limit": MAX_HISTORY}
        history: dict[str, Any] = await self._client.call("chat.history", given)
        said: dict[str, list[str]] = {}
        for message in history["messages"]:
            parts = [it["text"] for it in message["content"] if it["type"] == "text"]
            if message["role"] == "assistant" and (text := "".join(parts).strip()):
                said.setdefault(str(message["runId"]), []).append(text)
        return said
