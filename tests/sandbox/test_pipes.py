"""The pipes of a worker: whole frames in any pieces, and a peer that breaks every rule."""

import os
import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest
import wasmtime
from anyio.to_thread import run_sync

from clawmode.exceptions import ProtocolError
from clawmode.sandbox.frames import HEADER
from clawmode.sandbox.image import Setup, SnapshotSize
from clawmode.sandbox.pipes import Pipes
from clawmode.sandbox.protocol import PAGE
from clawmode.sandbox.wasm import Instance

pytestmark = pytest.mark.anyio

SOON = 10.0


class Peer:
    """The worker's ends of two pipes, and ours."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        self.answers, self.written = os.pipe()
        os.set_blocking(self.sink, False)
        os.set_blocking(self.answers, False)
        self.pipes = Pipes(self.sink, self.answers)

    def read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            data += os.read(self.source, length - len(data))
        return data

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.written, view) :]

    async def exchange(self, frame: bytes = b"?", allowed: int = 1 << 30) -> bytes:
        return await self.pipes.exchange(frame, allowed, time.monotonic() + SOON)

    def close(self) -> None:
        self.pipes.release()
        for pipe in (self.source, self.sink, self.answers, self.written):
            os.close(pipe)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def frame(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


async def test_frames_larger_than_a_pipe_go_through_whole(peer: Peer) -> None:
    question, answer = os.urandom(5 << 20), os.urandom(3 << 20)

    def work() -> bytes:
        read = peer.read(len(question))
        peer.write(frame(answer))
        return read

    got: list[bytes] = []

    async def ask() -> None:
        got.append(await peer.exchange(question))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        assert await run_sync(work) == question
    assert got == [answer]


async def test_an_answer_may_arrive_byte_by_byte(peer: Peer) -> None:
    async def dribble() -> None:
        for byte in frame(b"slow"):
            peer.write(bytes([byte]))
            await anyio.lowlevel.checkpoint()

    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dribble)
            assert await peer.exchange() == b"slow"


@pytest.mark.hostile
@pytest.mark.parametrize(
    "answer", [frame(b"one") + b"x", frame(b"one") + frame(b"two"), frame(b"x" * 101)]
)
async def test_more_than_one_answer_of_the_allowed_size_is_refused(
    peer: Peer, answer: bytes
) -> None:
    peer.write(answer)
    with pytest.raises(ProtocolError):
        await peer.exchange(allowed=100)


@pytest.mark.hostile
async def test_an_answer_to_half_of_a_question_is_refused(peer: Peer) -> None:
    peer.write(frame(b"I know already"))
    with pytest.raises(ProtocolError):
        await peer.exchange(bytes(8 << 20))


@pytest.mark.hostile
async def test_what_comes_between_two_questions_is_an_answer_to_neither(peer: Peer) -> None:
    peer.write(frame(b"1"))
    assert await peer.exchange() == b"1"
    peer.write(frame(b"unasked"))
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    peer.write(frame(b"2"))
    with pytest.raises(ProtocolError):
        await peer.exchange()


async def test_a_worker_that_dies_between_two_questions_is_noticed_at_the_next(peer: Peer) -> None:
    peer.write(frame(b"1"))
    assert await peer.exchange() == b"1"
    os.close(peer.written)
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    with pytest.raises(EOFError):
        await peer.exchange()
    peer.written = os.dup(peer.sink)  # there is something to close


async def test_each_question_has_its_own_deadline(peer: Peer) -> None:
    peer.write(frame(b"1"))
    assert await peer.pipes.exchange(b"?", 100, time.monotonic() + 0.02) == b"1"
    began = time.monotonic()
    with pytest.raises(TimeoutError):  # the timer of the first question is earlier
        await peer.pipes.exchange(b"?", 100, began + 0.1)
    assert time.monotonic() - began >= 0.1
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await peer.pipes.exchange(b"?", 100, began)
    assert time.monotonic() - began < SOON


async def test_the_pipes_move_to_the_event_loop_that_uses_them(peer: Peer) -> None:
    peer.write(frame(b"1"))
    assert await peer.exchange() == b"1"
    peer.write(frame(b"2"))
    assert await run_sync(anyio.run, peer.exchange) == b"2"


def test_a_large_memory_is_measured_again_when_it_grew_or_ran_for_long() -> None:
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, '(module (memory (export "memory") 16))')
    instance, measured = Instance(engine, module, {}), SnapshotSize()
    origin = Setup(bytes(instance.memory_size()), 0, size=100)
    instance.write(0, b"x")
    assert measured.bound(instance, origin, 0.0) == 100 + PAGE
    instance.write(5 * PAGE, b"x")
    assert measured.bound(instance, origin, 0.0) == 100 + PAGE  # not looked at for each call
    assert measured.bound(instance, origin, 60.0) == 100 + 2 * PAGE
    instance.grow_to(instance.memory_size() + 1)
    instance.write(9 * PAGE, b"x")
    assert measured.bound(instance, origin, 0.0) == 100 + 3 * PAGE
