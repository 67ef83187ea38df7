"""One client: what it may, what it follows, and what waits to be sent to it."""

import json
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio

from clawmode.rpc import protocol
from clawmode.rpc.protocol import Hello
from clawmode.rpc.scopes import Scope, may_see
from clawmode.tasks import Notifier
from clawmode.text import without_surrogates
from clawmode.types import JsonObject, JsonValue

MAX_FRAMES = 20_000
"""That wait for one client."""

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event, encoded once for all who are told.

    Attributes:
        session_key: Whose it is; empty: everyone's who may see it.
        run_id: The same by the run: whoever began it is told, too.
    """

    name: str
    payload: str
    session_key: str = ""
    run_id: str = ""

    @classmethod
    def of(
        cls, name: str, payload: JsonObject, session_key: str = "", run_id: str = ""
    ) -> "EncodedEvent":
        """Encodes an event."""
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        return cls(name, without_surrogates(text), session_key, run_id)


@dataclass(eq=False, slots=True)
class Client:
    """A client that is connected.

    Attributes:
        principal: Whose token it showed.
        following: Keys of the sessions whose events it wants; `*` is all.
        runs: Those that it began: it is told of them in any case.
        closing: With which code, and why, the connection is to end when all is sent.
        dropped: Set when it does not read: then nothing is sent any more.
    """

    hello: Hello
    principal: str
    scopes: frozenset[Scope]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=time.time)
    following: set[str] = field(default_factory=set[str])
    runs: set[str] = field(default_factory=set[str])
    seq: int = 0
    closing: tuple[int, str] | None = None
    dropped: anyio.Event = field(default_factory=anyio.Event)
    _frames: deque[str] = field(default_factory=deque[str])
    _buffered: int = 0
    _news: Notifier = field(default_factory=Notifier)

    def send(self, frame: str) -> None:
        """Has a frame sent. A client that does not read for long is dropped, and nobody else."""
        if self.closing is not None:
            return
        self._frames.append(frame)
        self._buffered += len(frame)
        if self._buffered > protocol.MAX_BUFFERED or len(self._frames) > MAX_FRAMES:
            self._frames.clear()
            self._buffered = 0
            self.dropped.set()
            self.finish(protocol.CLOSE_SLOW, "it does not read what it is sent")
        self._news.notify()

    def finish(self, code: int, reason: str) -> None:
        """Ends the connection, when what waits is sent."""
        self.closing = self.closing or (code, reason)
        self._news.notify()

    def tell(self, told: EncodedEvent) -> None:
        """Tells of an event, if it may see it and wants to."""
        if may_see(told.name, self.scopes) and self._wants(told):
            self.seq += 1
            head = f'{{"type":"event","event":"{told.name}","payload":{told.payload}'
            self.send(f'{head},"seq":{self.seq}}}')

    def _wants(self, told: EncodedEvent) -> bool:
        if not told.session_key and not told.run_id:
            return True
        if EVERYTHING in self.following or told.session_key in self.following:
            return True
        return bool(told.run_id) and told.run_id in self.runs

    async def frames(self) -> AsyncIterator[str]:
        """What is to be sent, as it comes; ends when all was sent and it is to end."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._buffered -= len(frame)
                yield frame
            if self.closing is not None:
                return
            await self._news.wait()

    def describe(self) -> JsonObject:
        """For operators."""
        return {
            "connId": self.id,
            "client": self.hello.client_id,
            "version": self.hello.version,
            "mode": self.hello.mode,
            "principal": self.principal,
            "scopes": list[JsonValue](sorted(self.scopes)),
            "since": int(self.since * 1000),
            "buffered": self._buffered,
        }
