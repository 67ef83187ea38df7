"""The inbox: each message becomes a slash command, steers the current run, or starts a turn.

A message has the rights of its sender. So it never steers a run of another sender, and it shares a
turn only with messages of the same sender.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import anyio

from clawmode.agent.events import AgentEvent
from clawmode.agent.hooks import MessageEvent
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import IncomingMessage
from clawmode.config.operations import Queue
from clawmode.exceptions import ClawmodeError
from clawmode.messages import Text, UserMessage
from clawmode.messaging.channel import InboundMessage, conversation_key, message_id
from clawmode.messaging.outbox import Outbox
from clawmode.messaging.queue import Batch, Line, QueuedMessage, settings_for
from clawmode.messaging.slash import DECISIONS, SlashCommand, SlashCommands, describe
from clawmode.sessions.store import Session
from clawmode.tasks import BackgroundTasks, hold
from clawmode.tools.approvals import Question
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.agent.runtime import AgentRuntime

logger = logging.getLogger("clawmode.chat")

How: TypeAlias = Literal["started", "steered", "queued", "dropped", "command", "repeated"]

MAX_DEBOUNCES = 5
"""The most debounce periods in a row, so that a sender who keeps writing gets a reply."""

MAX_KNOWN = 10_000
"""The number of message ids that are remembered to reject repeated messages."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How a message was accepted.

    Attributes:
        id: Cancels the message; the id of its run, unless it joins other messages.
        text: The reply to a command, if there is no channel to send it to.
    """

    how: How
    id: str = ""
    session_key: str = ""
    text: str = ""


class Keeper(Protocol):
    """Stores messages until a run has read them, so that a restart loses none."""

    async def keep(self, message_id: str, session_key: str, message: InboundMessage) -> None:
        """Stores a message."""
        ...

    async def release(self, ids: list[str]) -> None:
        """Deletes messages that were read or dropped."""
        ...


class Inbox:
    """Accepts messages. Used inside of `async with`, in one task.

    Args:
        runtime: Runs the turns.
        outbox: Sends the replies to commands.
        queue: How messages are handled that arrive during a run.
        find_model: Finds a model by its name, for `/model`.
        default_agent: The agent for messages that name none.
        operator: The scripts of the operator.

    Attributes:
        keeper: Stores messages until they are read, if set.
    """

    def __init__(
        self,
        *,
        runtime: "AgentRuntime",
        outbox: Outbox,
        queue: Queue,
        find_model: Callable[[str], object],
        default_agent: str,
        operator: OperatorHooks | None = None,
    ) -> None:
        self._runtime = runtime
        self._outbox = outbox
        self._queue = queue
        self._default_agent = default_agent
        self._operator = operator
        self._slash = SlashCommands(
            runtime=runtime,
            queue=queue,
            find_model=find_model,
            stop=self.stop,
            waiting=lambda key: len(self.waiting(key)),
            operator=operator,
        )
        self._lines: dict[str, Line] = {}
        self._steered: dict[str, tuple[str, QueuedMessage]] = {}
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._arriving: dict[str, list[object]] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self.keeper: Keeper | None = None
        self._background = BackgroundTasks("the inbox", logger)
        self._unsubscribe: Callable[[], None] = lambda: None

    async def __aenter__(self) -> "Inbox":
        await self._background.__aenter__()
        self._unsubscribe = self._runtime.subscribe(self._watch)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        await self._background.__aexit__()

    def change(self, queue: Queue, default_agent: str) -> None:
        """Applies a new configuration to later messages."""
        self._queue = self._slash.queue = queue
        self._default_agent = default_agent

    # ---- Channels ----

    async def receive(self, message: InboundMessage) -> Acceptance:
        """Accepts a message; returns as soon as it is stored.

        Raises:
            ClawmodeError: There is no such agent, or the state folder cannot be used.
        """
        if message.id:
            if (message.channel, message.id) in self._known:
                return Acceptance("repeated", message_id(message))
            self._known[message.channel, message.id] = None
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        try:
            agent = message.agent_id or self._default_agent
            key = message.session_key or conversation_key(agent, message.channel, message.target)
            owner = None if key.startswith("agent:") else agent
            session = await self._runtime.sessions.resolve(key, agent_id=owner)
            found = self._slash.parse(message.text)
            if found is not None and found.at_once:
                # A slow hook that delays other messages must not delay /stop.
                self._background.start(self._announce, message, session)
                self._arriving.pop(session.key, None)
                return await self._obey(found, message, session)
            return await self._receive(message, session, found)
        except BaseException:
            self._known.pop((message.channel, message.id), None)  # the sender may retry
            raise

    async def _receive(
        self, message: InboundMessage, session: Session, found: SlashCommand | None
    ) -> Acceptance:
        """Accepts a message after the earlier ones, unless `/stop` came meanwhile."""
        arrival = object()
        self._arriving.setdefault(session.key, []).append(arrival)
        try:
            async with hold(self._locks, session.key):
                await self._announce(message, session)
                if found is not None:
                    return await self._obey(found, message, session)
                now = await self._runtime.sessions.get(session.key)
                if arrival not in self._arriving.get(session.key, ()):
                    return Acceptance("dropped", session_key=session.key)
                return await self._keep(message, now)
        finally:
            arriving = self._arriving.get(session.key, [])
            if arrival in arriving:
                arriving.remove(arrival)
            if not arriving:
                self._arriving.pop(session.key, None)

    async def _keep(self, message: InboundMessage, session: Session) -> Acceptance:
        kept = message_id(message)
        if self.keeper is not None:
            await self.keeper.keep(kept, session.key, message)
        return self._take(kept, message, session)

    async def restore(self, kept: str, session_key: str, message: InboundMessage) -> None:
        """Accepts a message that an earlier process stored.

        Raises:
            ClawmodeError: The session cannot be used.
        """
        session = await self._runtime.sessions.get(session_key)
        self._take(kept, message, session)

    def _release(self, ids: Iterable[str]) -> None:
        """Has the keeper delete messages that were read or dropped."""
        if self.keeper is not None and (gone := list(ids)):
            self._background.start(self.keeper.release, gone)

    def cancel(self, message_id: str) -> bool:
        """Cancels a message that waits or that a run has not read yet, or aborts its run."""
        self._steered.pop(message_id, None)
        self._release([message_id])
        if any(line.remove(message_id) for line in self._lines.values()):
            return True
        return self._runtime.withdraw(message_id) or self._runtime.abort(message_id)

    def stop(self, session_key: str) -> int:
        """Drops the waiting messages of a session and aborts its runs; returns their number."""
        self._release(each.id for each in self.waiting(session_key))
        line = self._lines.get(session_key)
        count = 0 if line is None else line.clear()
        for run in self._runtime.under_way(session_key):
            unread = run.intake.close()
            self._release(said.id for said in unread)
            for said in unread:
                self._steered.pop(said.id, None)
        return count + self._runtime.stop(session_key)

    def waiting(self, session_key: str) -> list[QueuedMessage]:
        """Returns the waiting messages of a session, oldest first."""
        line = self._lines.get(session_key)
        return [] if line is None else list(line.waiting)

    def waiting_total(self) -> int:
        """Returns the number of waiting messages of all sessions."""
        return sum(len(line.waiting) for line in self._lines.values())

    # ---- Accepting ----

    async def _announce(self, message: InboundMessage, session: Session) -> None:
        event = MessageEvent(
            text=message.text,
            channel=message.channel,
            target=message.target,
            sender=message.sender,
            session_key=session.key,
        )
        await self._runtime.hooks.notify("message_received", event)
        if self._operator is not None and self._operator.has("message:received"):
            await self._operator.run("message:received", event.to_json())

    def _take(self, kept: str, message: InboundMessage, session: Session) -> Acceptance:
        settings = settings_for(self._queue, message.channel, session.data.get("queue"))
        queued = QueuedMessage(kept, message, settings)
        line = self._lines.setdefault(session.key, Line())
        busy = bool(self._runtime.under_way(session.key)) or line.served
        if busy and settings.mode == "interrupt":
            self.stop(session.key)
        elif busy and settings.mode == "steer" and self._steer(session.key, queued, line):
            return Acceptance("steered", queued.id, session.key)
        # No debouncing for the first message: no run is under way that could be interrupted.
        line.last = anyio.current_time() if busy else 0.0
        if not line.waiting:
            line.first = line.last
        gone = line.add(queued)
        self._release(each.id for each in gone)
        self._serve(session.key, line)
        if queued in gone:
            return Acceptance("dropped", queued.id, session.key)
        return Acceptance("queued" if busy else "started", queued.id, session.key)

    def _steer(self, key: str, queued: QueuedMessage, line: Line) -> bool:
        """Passes the message to the current run, if the sender started it and no message waits."""
        if line.waiting:
            return False
        message = queued.message
        said = IncomingMessage(
            queued.id, UserMessage(content=(Text(message.text), *message.images))
        )
        for run in self._runtime.under_way(key):
            asked = (run.request.channel, run.request.target, run.request.sender)
            own = asked == (message.channel, message.target, message.sender)
            if own and self._runtime.steer(run.id, said):
                run.intake.on_read = self._release
                self._steered[queued.id] = (run.id, queued)
                return True
        return False

    # ---- Turns ----

    def _serve(self, key: str, line: Line) -> None:
        if not line.served:
            line.served = True
            self._background.start(self._drain, key, line)

    async def _drain(self, key: str, line: Line) -> None:
        """Starts turns until no message of the session waits."""
        try:
            while line.waiting:
                while runs := self._runtime.under_way(key):
                    await runs[-1].ended.wait()
                while line.waiting and line.last:  # debounce
                    wait = line.waiting[0].settings.debounce_seconds
                    until = min(line.last + wait, line.first + wait * MAX_DEBOUNCES)
                    if (rest := until - anyio.current_time()) <= 0:
                        break
                    await anyio.sleep(rest)
                line.starting = line.next()
                if line.starting is not None:
                    await self._turn(key, line, line.starting)
        finally:
            line.served = False
            if not line.waiting and self._lines.get(key) is line:
                del self._lines[key]

    async def _turn(self, key: str, line: Line, batch: Batch) -> None:
        message = batch.message
        request = AgentRequest(
            message=batch.text,
            images=batch.images,
            session_key=key,
            run_id=batch.id,
            sender=message.sender,
            channel=message.channel,
            target=message.target,
            message_ids=tuple(each.id for each in batch.messages),
        )
        try:
            run = await self._runtime.start(request)
        except Exception as error:
            logger.error("session %s: %s: %s", key, type(error).__name__, error)
            reason = str(error) if isinstance(error, ClawmodeError) else type(error).__name__
            self._answer(message, key, f"The run could not be started: {reason}")
            self._release(request.message_ids)
            return
        finally:
            line.starting = None
        if batch.void:
            self._runtime.abort(run.id)
        await run.ended.wait()

    def _watch(self, event: AgentEvent) -> None:
        """Queues the messages again that a run has not read before its end."""
        if event.stream != "lifecycle" or event.data.get("phase") == "start":
            return
        run = self._runtime.find(event.run_id)
        unread = () if run is None or run.result is None else run.result.unread
        found = [self._steered.pop(said.id, None) for said in unread]
        for said_id in [
            key for key, (run_id, _) in self._steered.items() if run_id == event.run_id
        ]:
            del self._steered[said_id]
        if left := [it[1] for it in found if it is not None]:
            line = self._lines.setdefault(event.session_key, Line())
            line.put_back(left)
            self._serve(event.session_key, line)

    # ---- Commands ----

    async def _obey(
        self, found: SlashCommand, message: InboundMessage, session: Session
    ) -> Acceptance:
        heard = self._outbox.has(message.channel)
        reply = ""
        if found.takes_long and heard:
            self._background.start(self._carry_out, found, message, session)
        else:
            reply = await self._carry_out(found, message, session)
        if found.begins and found.arguments:
            begun = await self._runtime.sessions.get(session.key)
            return await self._keep(replace(message, text=found.arguments), begun)
        return Acceptance("command", session_key=session.key, text="" if heard else reply)

    async def _carry_out(
        self, found: SlashCommand, message: InboundMessage, session: Session
    ) -> str:
        reply = await self._slash.run(found, message, session)
        self._answer(message, session.key, reply)
        return reply

    def _answer(self, message: InboundMessage, key: str, text: str) -> None:
        """Sends a text to the origin of a message, in the background."""
        if text and self._outbox.has(message.channel):
            self._background.start(self._send, message.channel, message.target, text, key)

    async def _send(self, channel: str, target: str, text: str, key: str) -> None:
        receipt = await self._outbox.send(channel, target, text, session_key=key)
        if receipt.status == "failed":
            logger.error("channel %s: %s", channel, receipt.error)

    def tell_question(self, question: Question) -> None:
        """Sends an approval question to the channel of its run; a callback for `Approvals`."""
        run = self._runtime.find(question.run.run_id)
        if run is not None and run.request.target and self._outbox.has(run.request.channel):
            text = f"{describe(question)}\n/approve {question.id} {'|'.join(DECISIONS)}"
            to = (run.request.channel, run.request.target)
            self._background.start(self._send, *to, text, run.session.key)
