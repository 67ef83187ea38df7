"""Parent side: the pipes of one worker, on the event loop.

One frame goes out and one comes in. `frames` knows what they mean.
"""

import asyncio
import os
import time

from clawmode.exceptions import ProtocolError
from clawmode.files import enlarge_pipe
from clawmode.sandbox.frames import HEADER, frame_length

LARGE, PIPE_BYTES = 64 << 10, 1 << 20
"""A frame over `LARGE` bytes makes its pipe hold `PIPE_BYTES`, so that it needs few turns of the
event loop. Not every pipe: the kernel limits what the pipes of a user may hold together."""


class Pipes:
    """The pipes to and from a worker, for one frame out and one frame in at a time.

    The reader stays registered between questions, and so does the timer: registering both anew for
    each question would cost more than the rest of an exchange.
    """

    def __init__(self, sink: int, source: int) -> None:
        self._sink, self._source = sink, source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._body: asyncio.Future[bytes] | None = None
        self._reading = self._writing = False
        self._unsent: memoryview | None = None
        self._chunks: list[bytes] = []
        self._missing = self._allowed = 0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    async def exchange(self, frame: bytes, allowed: int, deadline: float) -> bytes:
        """Writes a frame, and returns the body of the frame that answers it.

        Args:
            frame: The whole frame.
            allowed: The maximum of bytes in the body of the answer.
            deadline: By `time.monotonic`.

        Raises:
            TimeoutError: The answer was not complete by the deadline.
            ProtocolError: The answer is too large, or more than one frame.
            EOFError: The worker has closed its pipe.
            OSError: The pipes cannot be used.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.release()
            self._loop = loop
        self._body = loop.create_future()
        self._chunks.clear()
        self._missing, self._allowed = 0, allowed
        self._deadline = deadline
        if self._timer is None or self._timer_at > deadline:
            self._set_timer(loop)
        try:
            self._unsent = memoryview(frame)
            if len(frame) > LARGE:
                enlarge_pipe(self._sink, PIPE_BYTES)
            self._on_writable()
            if self._unsent:
                loop.add_writer(self._sink, self._on_writable)
                self._writing = True
            if not self._reading:
                loop.add_reader(self._source, self._on_readable)
                self._reading = True
            return await self._body
        finally:
            if self._writing:
                self._stop_writing()
            self._unsent = None

    async def answered(self, seconds: float) -> None:
        """Waits until the exchange under way has ended, for `seconds` at most."""
        if self._body is not None and not self._body.done():
            await asyncio.wait([self._body], timeout=seconds)

    def release(self) -> None:
        """Forgets the event loop; before the pipes are closed."""
        if self._loop is not None and not self._loop.is_closed():
            if self._reading:
                self._loop.remove_reader(self._source)
            if self._timer is not None:
                self._timer.cancel()
        self._reading, self._timer, self._loop = False, None, None

    # ---- Called by the event loop ----

    def _on_writable(self) -> None:
        assert self._unsent is not None
        try:
            self._unsent = self._unsent[os.write(self._sink, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(error)
            return
        if self._writing and not self._unsent:
            self._stop_writing()

    def _stop_writing(self) -> None:
        assert self._loop is not None
        self._loop.remove_writer(self._sink)
        self._writing = False

    def _on_readable(self) -> None:
        body = self._body
        if body is None or body.done():
            # Nothing was asked. The next question finds the data, or the end of the worker.
            assert self._loop is not None
            self._loop.remove_reader(self._source)
            self._reading = False
            return
        try:
            self._read(body)
        except (OSError, EOFError, ProtocolError) as error:
            self._fail(error)

    def _read(self, body: "asyncio.Future[bytes]") -> None:
        try:
            chunk = os.read(self._source, min(max(self._missing, LARGE), PIPE_BYTES))
        except BlockingIOError:
            return
        if not chunk:
            raise EOFError
        if self._unsent:
            raise ProtocolError("an answer to half of a question")
        chunks = self._chunks
        if not self._missing:
            chunk = b"".join([*chunks, chunk])
            chunks.clear()
            if len(chunk) < HEADER.size:
                chunks.append(chunk)
                return
            self._missing = frame_length(chunk[: HEADER.size])
            if self._missing > self._allowed:
                raise ProtocolError(f"an answer of {self._missing} bytes, {self._allowed} allowed")
            if self._missing > LARGE:
                enlarge_pipe(self._source, PIPE_BYTES)
            chunk = chunk[HEADER.size :]
        chunks.append(chunk)
        self._missing -= len(chunk)
        if self._missing < 0:
            raise ProtocolError("more than one answer")
        if not self._missing:
            body.set_result(chunk if len(chunks) == 1 else b"".join(chunks))

    def _fail(self, error: Exception) -> None:
        if self._body is not None and not self._body.done():
            self._body.set_exception(error)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = loop.call_later(self._deadline - time.monotonic(), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._body is None or self._body.done() or self._loop is None:
            return
        if self._deadline > time.monotonic():
            self._set_timer(self._loop)  # the timer was set for an earlier question
        else:
            self._fail(TimeoutError())
