"""A connected client: its scopes, the sessions that it follows, and its queue of frames."""

import json
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import field

import anyio

from clawmode.rpc import protocol
from clawmode.rpc.protocol import Hello
from clawmode.rpc.scopes import Scope, may_see
from clawmode.tasks import Notifier
from clawmode.text import without_surrogates
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_FRAMES = 20_000
"""The most frames that wait to be sent to one client."""

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event, encoded once for all its receivers.

    Attributes:
        payload: The JSON text.
        session_key: The session that the event is about; empty if it is for all clients.
        run_id: The run that the event is about; the client that started the run receives it.
        at: The number of the event in the gateway; 0 for an event to one client.
    """

    name: str
    payload: str
    session_key: str = ""
    run_id: str = ""
    at: int = 0

    @classmethod
    def of(
        cls, name: str, payload: JsonObject, session_key: str = "", run_id: str = ""
    ) -> "EncodedEvent":
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        return cls(name, without_surrogates(text), session_key, run_id)


@dataclass(eq=False, slots=True)
class Client:
    """A client that is connected.

    Attributes:
        principal: The name of the client's token.
        token: The hash of the token.
        session: The session of a browser that opened the connection; empty for all other clients.
        following: The keys of the sessions whose events it receives; `*` for all sessions.
        runs: The runs that it started: it receives their events in any case.
        follows_runs: Whether the client receives `runs.changed`.
        missed_runs: Whether the client was too slow for a `runs.changed`.
        closing: The code and reason with which the connection is closed after the last frame.
        finished: Set when the connection is to be closed.
        dropped: Set if the client does not read. Then nothing more is sent.
    """

    hello: Hello
    principal: str
    scopes: frozenset[Scope]
    token: str
    session: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=time.time)
    following: set[str] = field(default_factory=set[str])
    runs: set[str] = field(default_factory=set[str])
    follows_runs: bool = False
    missed_runs: bool = False
    seq: int = 0
    closing: tuple[int, str] | None = None
    finished: anyio.Event = field(default_factory=anyio.Event)
    dropped: anyio.Event = field(default_factory=anyio.Event)
    _frames: deque[str] = field(default_factory=deque[str])
    _buffered: int = 0
    _changed: Notifier = field(default_factory=Notifier)

    def send(self, frame: str) -> None:
        """Queues a frame. A client whose queue is full is dropped: it must not slow down others."""
        if self.closing is not None:
            return
        self._frames.append(frame)
        self._buffered += len(frame)
        if self._buffered > protocol.MAX_BUFFERED or len(self._frames) > MAX_FRAMES:
            self._frames.clear()
            self._buffered = 0
            self.dropped.set()
            self.finish(protocol.CLOSE_SLOW, "the client does not read fast enough")
        self._changed.notify()

    def finish(self, code: int, reason: str) -> None:
        """Closes the connection after the queued frames. The first code and reason count.

        A client that does not read them in time is disconnected without them.
        """
        self.closing = self.closing or (code, reason)
        self.finished.set()
        self._changed.notify()

    @property
    def buffered(self) -> int:
        """The number of characters that wait to be sent."""
        return self._buffered

    def receives(self, event: EncodedEvent) -> bool:
        """Returns whether the client may see an event and follows its session or run."""
        follows = (
            not (event.session_key or event.run_id)
            or EVERYTHING in self.following
            or event.session_key in self.following
            or (event.run_id != "" and event.run_id in self.runs)
        )
        return follows and may_see(event.name, self.scopes)

    def notify(self, event: EncodedEvent) -> None:
        """Queues an event if the client `receives` it."""
        if self.receives(event):
            self.seq += 1
            # Built around the encoded payload, so that an event for many clients is encoded once.
            head = f'{{"type":"event","event":"{event.name}","payload":{event.payload}'
            at = f',"at":{event.at}' if event.at else ""
            self.send(f'{head},"seq":{self.seq}{at}}}')

    async def frames(self) -> AsyncIterator[str]:
        """Yields queued frames, and ends when the connection is to be closed."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._buffered -= len(frame)
                yield frame
            if self.closing is not None:
                return
            await self._changed.wait()

    def describe(self) -> JsonObject:
        """Returns the client as the method `status` shows it."""
        return {
            "connId": self.id,
            "client": self.hello.client.id,
            "version": self.hello.client.version,
            "mode": self.hello.client.mode,
            "principal": self.principal,
            "scopes": list[JsonValue](sorted(self.scopes)),
            "since": int(self.since * 1000),
            "buffered": self.buffered,
        }
