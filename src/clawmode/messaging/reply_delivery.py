"""Sends replies to the channel of a run, and to chat clients, during the run and at its end.

A chat client repeatedly gets the text so far, and a final event. A channel gets what it supports:
one message that is edited as it grows, finished blocks, or only the final reply. Nothing is sent
twice, even after retries, and `NO_REPLY` is never sent.
"""

import logging
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from clawmode.agent.events import AgentEvent
from clawmode.agent.replies import SILENT, SentMessages, is_silent
from clawmode.agent.requests import RunResult
from clawmode.messaging.channel import Channel
from clawmode.messaging.outbox import MAX_CHARS, Outbox
from clawmode.tasks import BackgroundTasks, Notifier
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.agent.run import AgentRun
    from clawmode.agent.runtime import AgentRuntime

logger = logging.getLogger("clawmode.chat")

DELTA_SECONDS = 0.15
"""How often chat clients get the text so far."""

EDIT_SECONDS = 1.0
"""How often a growing message is edited."""

CLOSE_SECONDS = 5.0
"""How long closing waits for replies that are being sent."""

OnChat: TypeAlias = Callable[[JsonObject], None]
"""Receives `{runId, sessionKey, seq, state: "delta" | "final" | "error" | "aborted", text, …}`."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A finished block. Its kind is `covered` if its parts were sent already."""

    text: str
    kind: str = ""


@dataclass(slots=True)
class _Reply:
    """The reply of a run, while the model writes it.

    Attributes:
        text: The text of the answer so far.
        thoughts: The model's thoughts so far.
        told: The text and thoughts that chat clients got last.
        parts: Parts of the answer that are held back while it could still become `NO_REPLY`.
        blocks: Finished blocks to send, in order.
        sent: The texts that were sent; `other` has thoughts and calls.
        growing: The id of the growing message; `shown` is its current text.
        before: Set when the previous reply to the target has been sent.
        done: Set when this reply has been sent.
    """

    run: "AgentRun"
    channel: Channel | None
    before: anyio.Event | None = None
    text: str = ""
    thoughts: str = ""
    seq: int = 0
    told: tuple[str, str] = ("", "")
    parts: list[str] = field(default_factory=list[str])
    blocks: list[_Block] = field(default_factory=list[_Block])
    sent: SentMessages = field(default_factory=SentMessages)
    other: SentMessages = field(default_factory=SentMessages)
    growing: str = ""
    shown: str = ""
    ended: bool = False
    done: anyio.Event = field(default_factory=anyio.Event)
    changes: Notifier = field(default_factory=Notifier)

    @property
    def in_blocks(self) -> bool:
        """True if the reply is sent block by block."""
        return self.run.agent.block_streaming or (
            self.channel is not None and self.channel.block_streaming
        )

    @property
    def to(self) -> tuple[str, str]:
        return self.run.request.channel, self.run.request.target

    @property
    def result(self) -> RunResult:
        assert self.run.result is not None
        return self.run.result


class Delivery:
    """Delivers the replies of all runs. Used inside of `async with`, in one task.

    Args:
        runtime: Reports the events of runs.
        outbox: Sends the messages.
        on_chat: Receives the events for chat clients.
    """

    def __init__(
        self, runtime: "AgentRuntime", outbox: Outbox, on_chat: OnChat = lambda event: None
    ) -> None:
        self._runtime = runtime
        self._outbox = outbox
        self._on_chat = on_chat
        self._replies: dict[str, _Reply] = {}
        self._last: dict[tuple[str, str], _Reply] = {}
        self._background = BackgroundTasks("the delivery", logger)
        self._unsubscribe: Callable[[], None] = lambda: None

    async def __aenter__(self) -> "Delivery":
        await self._background.__aenter__()
        self._unsubscribe = self._runtime.subscribe(self._take)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            for reply in [it for it in self._last.values() if it.ended]:
                await reply.done.wait()
        await self._background.__aexit__()

    # ---- Events ----

    def _take(self, event: AgentEvent) -> None:
        phase = event.data.get("phase") if event.stream == "lifecycle" else None
        if phase == "start" or (phase is not None and event.run_id not in self._replies):
            self._begin(event.run_id)  # a run that was aborted in the queue has no start event
        reply = self._replies.get(event.run_id)
        if reply is None:
            return
        if phase in ("end", "error"):
            reply.ended = True
            del self._replies[event.run_id]
        elif event.stream == "assistant":
            _hear(reply, event.data)
        elif event.stream == "thinking":
            reply.thoughts += str(event.data.get("delta", ""))
        reply.changes.notify()

    def _begin(self, run_id: str) -> None:
        run = self._runtime.find(run_id)
        assert run is not None
        request = run.request
        channel = self._outbox.find(request.channel) if request.target else None
        reply = self._replies[run_id] = _Reply(run, channel)
        self._background.start(self._chat, reply)
        if channel is not None:
            key = (run.session.key, request.channel + "\0" + request.target)
            before = self._last.get(key)
            reply.before = None if before is None else before.done
            self._last[key] = reply
            self._background.start(self._send, reply, channel, key)

    # ---- Chat clients ----

    async def _chat(self, reply: _Reply) -> None:
        seen = 0
        while not reply.ended:
            seen = await reply.changes.wait(seen)
            thoughts = reply.thoughts if reply.run.agent.reasoning == "stream" else ""
            text = "" if may_be_silent(reply.text) else reply.text
            if (text or thoughts) and (text, thoughts) != reply.told and not reply.ended:
                reply.told = (text, thoughts)
                self._emit(reply, "delta", text, reasoning=thoughts)
                await anyio.sleep(DELTA_SECONDS)
        result = reply.result
        words = (str(it.get("text", "")) for it in result.payloads if not it.get("kind"))
        state = {"ok": "final", "aborted": "aborted"}.get(result.status, "error")
        self._emit(reply, state, "\n\n".join(words), error=result.error or "")

    def _emit(self, reply: _Reply, state: str, text: str, **more: str) -> None:
        reply.seq += 1
        event: JsonObject = {
            "runId": reply.run.id,
            "sessionKey": reply.run.session.key,
            "seq": reply.seq,
            "state": state,
            "text": text,
        }
        self._on_chat(event | {key: value for key, value in more.items() if value})

    # ---- Channels ----

    async def _send(self, reply: _Reply, channel: Channel, key: tuple[str, str]) -> None:
        """Sends what the channel supports during the run, and the rest at its end."""
        seen = 0
        try:
            if reply.before is not None:
                await reply.before.wait()
            while not reply.ended:
                seen = await reply.changes.wait(seen)
                if reply.in_blocks or channel.can_edit:
                    await self._send_blocks(reply)
                if not reply.in_blocks and channel.can_edit and not reply.ended:
                    await self._grow(reply)
            await self._send_blocks(reply)
            if reply.result.status != "aborted" or reply.run.stopped:
                for payload in reply.result.payloads:
                    kind = str(payload.get("kind", ""))
                    await self._say(reply, str(payload.get("text", "")), kind)
        finally:
            reply.done.set()
            if self._last.get(key) is reply:
                del self._last[key]

    async def _send_blocks(self, reply: _Reply) -> None:
        while reply.blocks and (reply.in_blocks or not reply.ended):
            block = reply.blocks.pop(0)
            await self._say(reply, block.text, block.kind)

    async def _grow(self, reply: _Reply) -> None:
        """Updates the growing message, until the text is too long for one message."""
        text = reply.text.strip()
        by_tools = reply.run.sent
        if not text or len(text) > MAX_CHARS or may_be_silent(text):
            return
        if not reply.sent.has(text) and not by_tools.may_become(text):
            await self._put(reply, text)
            await anyio.sleep(EDIT_SECONDS)

    async def _say(self, reply: _Reply, text: str, kind: str = "") -> None:
        """Sends a finished text unless it was sent already; completes a growing message."""
        known = reply.other if kind not in ("", "covered") else reply.sent
        if not text.strip() or is_silent(text) or known.has(text):
            return
        if known is reply.sent and reply.run.sent.has(text):
            return
        known.add(text)
        if kind == "":
            await self._put(reply, text, final=True)
            reply.growing = reply.shown = ""
        elif kind != "covered":
            words = f"Reasoning:\n{text.strip()}" if kind == "reasoning" else text
            await self._post(reply, words)

    async def _put(self, reply: _Reply, text: str, *, final: bool = False) -> None:
        """Edits the growing message, or sends the first version."""
        if not reply.growing:
            reply.growing = await self._post(reply, text)
        elif text != reply.shown:
            key, edited = reply.run.session.key, reply.growing
            changed = await self._outbox.send(*reply.to, text, session_key=key, edited=edited)
            if changed.status == "failed":
                logger.error(
                    "run %s: a message could not be changed: %s", reply.run.id, changed.error
                )
                if not final:
                    return
                reply.growing = await self._post(reply, text)
        reply.shown = text

    async def _post(self, reply: _Reply, text: str) -> str:
        key = reply.run.session.key
        receipt = await self._outbox.send(*reply.to, text, session_key=key)
        if receipt.status == "failed":
            logger.error("run %s: the reply could not be sent: %s", reply.run.id, receipt.error)
        return receipt.message_id


def _hear(reply: _Reply, data: JsonObject) -> None:
    """Records what the model wrote. A growing message ends with the answer."""
    if data.get("reset"):
        reply.text = reply.thoughts = ""
        reply.parts.clear()
    reply.text += str(data.get("delta", ""))
    by_text = reply.in_blocks and reply.run.agent.block_streaming_break == "text_end"
    if by_text and (part := str(data.get("text") or "").strip()):
        reply.parts.append(part)
        if not may_be_silent("".join(reply.parts)):
            _finish_parts(reply)
    if "message" not in data:
        return
    whole = str(data["message"] or "").strip()
    if whole and not is_silent(whole):
        if by_text:
            _finish_parts(reply)
            reply.blocks.append(_Block(whole, "covered"))
        else:
            reply.parts[:] = [whole]
            _finish_parts(reply)
    reply.parts.clear()
    reply.text = reply.thoughts = ""


def _finish_parts(reply: _Reply) -> None:
    if reply.parts and reply.run.agent.reasoning == "on" and reply.thoughts.strip():
        reply.blocks.append(_Block(reply.thoughts, "reasoning"))
        reply.thoughts = ""
    reply.blocks += [_Block(part) for part in reply.parts]
    reply.parts.clear()


def may_be_silent(text: str) -> bool:
    """True if the text could still become `NO_REPLY`."""
    words = text.strip()
    return any(silent.startswith(words) for silent in SILENT)
