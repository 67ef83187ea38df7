"""What hostile peers, snapshots, values and sources can do: nothing but what is said.

Hypothesis makes them up, the same ones in every run. What it found is kept as an `@example`, or as
a test of its own where it is shown best.
"""

import json
import math
import struct
import threading
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import msgpack
import pytest
import wasmtime
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.fuzzing import examples
from tests.support.sandbox_driver import patience
from tests.support.stepping import finish

from clawmode.exceptions import (
    DeadlineExceeded,
    ProtocolError,
    RuntimeUnavailable,
    SnapshotError,
    SnapshotRefused,
    SnapshotTooLarge,
)
from clawmode.sandbox import artifacts
from clawmode.sandbox.frames import (
    HEADER,
    MAX_FRAME,
    decode_answer,
    decode_question,
    encode,
    frame_length,
    read_json,
)
from clawmode.sandbox.output import Outbox, json_string, longest_prefix
from clawmode.sandbox.packing import zstd
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import (
    LANGUAGES,
    METHODS,
    PAGE,
    Acknowledgement,
    Answer,
    Boot,
    Completion,
    Failure,
    Freeze,
    FrozenCell,
    Install,
    Language,
    Limits,
    Output,
    Provide,
    Question,
    Request,
    Resume,
    Settlement,
    Start,
    Suspension,
)
from clawmode.sandbox.source import HEAD, CompileFailure, describe_failure, wrap
from clawmode.sandbox.vm import Vm
from clawmode.sandbox.wasm import THREAD_STACK, new_engine
from clawmode.types import ERROR_CODES

pytestmark = pytest.mark.hostile

T = TypeVar("T")


def fuzz(count: int) -> settings:
    """The same examples in every run: what is found here is found by everyone."""
    return examples(
        count,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


any_text = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
sound_text = st.text(max_size=30)
numbers = st.integers(-(2**63), 2**64 - 1)
seconds = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**63)
data = st.binary(max_size=60)


# ---- The frame codec ----

limits = st.builds(Limits, numbers, numbers, numbers)
outputs = st.lists(st.builds(Output, st.sampled_from(["text", "json"]), data), max_size=3)
words = st.integers(0, (1 << 32) - 1)
requests = st.lists(st.builds(Request, words, st.sampled_from(METHODS), data), max_size=3)
replies = st.lists(st.builds(Settlement, numbers, st.booleans(), data), max_size=3)
snapshots = st.builds(FrozenCell, data, words, st.tuples(words, words, words), data, words)

questions: st.SearchStrategy[Question] = st.one_of(
    st.builds(Boot, data),
    st.builds(Install, data, data),
    st.builds(Provide, st.sampled_from(["quickjs", "swc", "acorn"]), data),
    st.builds(Start, any_text, st.sampled_from(LANGUAGES), limits, numbers, seconds, data),
    st.builds(Resume, replies.map(tuple), st.none() | snapshots, limits, numbers, seconds, seconds),
    st.just(Freeze()),
)
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Acknowledgement, data, st.lists(sound_text, max_size=3).map(tuple)),
    st.builds(Completion, data, outputs.map(tuple)),
    st.builds(Suspension, requests.map(tuple), counts, seconds, outputs.map(tuple)),
    st.builds(
        Failure,
        st.sampled_from(ERROR_CODES),
        sound_text,
        outputs.map(tuple),
        requests.map(tuple),
        st.booleans(),
    ),
    snapshots,
)
trees = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | sound_text | data,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(sound_text | data, inner, max_size=3)
    ),
    max_leaves=12,
)
edits = st.lists(
    st.tuples(st.integers(0, 2**16), st.binary(max_size=4), st.integers(0, 4)),
    min_size=1,
    max_size=4,
)


def body_of(frame: bytes) -> bytes:
    """A frame without its header, which has to be right."""
    assert frame_length(frame[: HEADER.size]) == len(frame) - HEADER.size
    return frame[HEADER.size :]


def packed(tree: object) -> bytes:
    made = msgpack.packb(tree, use_bin_type=True)
    assert made is not None
    return made


def replaced(tree: Any, path: list[int], other: object) -> Any:
    """`tree` with the node that `path` leads to replaced."""
    if not path or not isinstance(tree, list) or not tree:
        return other
    at = path[0] % len(tree)
    return [*tree[:at], replaced(tree[at], path[1:], other), *tree[at + 1 :]]


def edited(body: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    """`body` with some bytes cut out and others put in their place."""
    for place, new, cut in changes:
        at = place % (len(body) + 1)
        body = body[:at] + new + body[at + cut :]
    return body


def all_are(items: Any, kind: type) -> bool:
    return type(items) is tuple and all(type(item) is kind for item in items)


def check_outputs(items: Any) -> None:
    assert all_are(items, Output)
    assert all(item.type in ("text", "json") and type(item.body) is bytes for item in items)


def check_requests(items: Any) -> None:
    assert all_are(items, Request)
    for item in items:
        assert type(item.id) is int
        assert item.method in METHODS
        assert type(item.args) is bytes


def check_answer(answer: Answer) -> None:
    """Every field has the type that it is declared with."""
    match answer:
        case Acknowledgement():
            assert type(answer.image) is bytes
            assert all_are(answer.notes, str)
        case FrozenCell():
            assert type(answer.image) is type(answer.pages) is bytes
            numbers = (answer.memory, answer.heap, *answer.pointers)
            assert all_are(numbers, int)
            assert all(0 <= number < 1 << 32 for number in numbers)
            assert len(answer.pointers) == 3
        case Completion():
            assert type(answer.value) is bytes
            check_outputs(answer.output)
        case Suspension():
            assert type(answer.timers) is type(answer.frozen_at_most) is int
            assert type(answer.due) is float
            check_requests(answer.requests)
            check_outputs(answer.output)
        case Failure():
            assert answer.code in ERROR_CODES
            assert type(answer.error) is str
            assert type(answer.crashed) is bool
            check_requests(answer.requests)
            check_outputs(answer.output)


def check_decoding(body: bytes) -> None:
    try:
        answer = decode_answer(body, 7)
    except ProtocolError:
        return
    check_answer(answer)


@fuzz(300)
@given(questions, numbers)
def test_a_question_arrives_as_it_was_sent(question: Question, number: int) -> None:
    assert decode_question(body_of(encode(question, number))) == (question, number)


@fuzz(300)
@given(answers, numbers)
def test_an_answer_arrives_as_it_was_sent(answer: Answer, number: int) -> None:
    body = body_of(encode(answer, number))

    assert decode_answer(body, number) == answer
    check_answer(answer)
    with pytest.raises(ProtocolError):
        decode_answer(body, number + 1)


@fuzz(300)
@given(st.binary(max_size=200))
def test_bytes_are_an_answer_or_refused(body: bytes) -> None:
    check_decoding(body)


@fuzz(400)
@given(answers, edits)
def test_an_answer_with_wrong_bytes_is_an_answer_or_refused(
    answer: Answer, changes: list[tuple[int, bytes, int]]
) -> None:
    check_decoding(edited(body_of(encode(answer, 7)), changes))


@fuzz(400)
@given(answers, st.lists(st.integers(0, 20), min_size=1, max_size=4), trees)
def test_an_answer_with_another_field_is_an_answer_or_refused(
    answer: Answer, path: list[int], other: object
) -> None:
    tree = msgpack.unpackb(body_of(encode(answer, 7)))
    check_decoding(packed(replaced(tree, path, other)))


@fuzz(300)
@given(st.sampled_from(["ready", "frozen", "done", "suspended", "failed", "start"]), trees)
def test_any_tree_is_an_answer_or_refused(kind: str, tree: object) -> None:
    check_decoding(packed(tree))
    check_decoding(packed([kind, 7, *tree] if isinstance(tree, list) else [kind, 7, tree]))


@pytest.mark.parametrize(
    "answer",
    [
        ["x" * 100_000, 7],
        ["done", 7, b"", [["x" * 100_000, b""]]],
        ["suspended", 7, [[1, "x" * 100_000, b""]], 0, 0.0, []],
        ["failed", 7, [["deep"] * 50] * 50, "", [], [], False],
    ],
    ids=["kind", "output", "request", "code"],
)
def test_a_refusal_is_short_whatever_was_sent(answer: list[object]) -> None:
    """It is written to the log."""
    with pytest.raises(ProtocolError) as refused:
        decode_answer(packed(answer), 7)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four billion
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        b"\xdf\xff\xff\xff\xff",  # as many pairs
        b"\x91" * 100_000,  # lists in lists
        b"\xc9\x00\x00\x10\x00\x05" + bytes(4096),  # an extension
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"",
    ],
    ids=["list", "bytes", "map", "nesting", "extension", "timestamp", "nothing"],
)
def test_announced_sizes_are_not_believed(body: bytes) -> None:
    tracemalloc.start()
    try:
        check_decoding(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@fuzz(100)
@given(st.binary(min_size=4, max_size=4))
@example(struct.pack(">I", MAX_FRAME))
@example(struct.pack(">I", MAX_FRAME + 1))
def test_a_header_is_a_length_that_a_frame_may_have_or_refused(header: bytes) -> None:
    try:
        length = frame_length(header)
    except ProtocolError:
        length = MAX_FRAME + 1
    assert min(int.from_bytes(header, "big"), MAX_FRAME + 1) == length


@fuzz(200)
@given(any_text)
@example("return '\ud800'")
def test_any_text_can_be_sent_as_source(source: str) -> None:
    """A model's JSON may hold half of a surrogate pair."""
    decoded, _ = decode_question(body_of(encode(Start(source), 1)))
    assert decoded == Start(source)


@pytest.mark.parametrize("due", [math.nan, math.inf, -math.inf])
def test_an_invalid_due_time_is_rejected(due: float) -> None:
    """The parent sleeps until then."""
    with pytest.raises(ProtocolError):
        decode_answer(body_of(encode(Suspension(due=due), 1)), 1)


# ---- The snapshot reader ----


class VmThread:
    """A VM in this process, in a thread with the stack that guests need."""

    def __init__(self) -> None:
        before = threading.stack_size(THREAD_STACK)
        self._thread = ThreadPoolExecutor(1)
        self.run(lambda: None)
        threading.stack_size(before)
        self.vm = self.run(self._new_vm)
        waits = "return x.length + await tools.call('t')"
        self.small = self.run(lambda: self._freeze(f"const x = 'y'; {waits}"))
        self.grown = self.run(lambda: self._freeze(f"const x = 'y'.repeat(3e6); {waits}"))

    def run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()

    def _new_vm(self) -> Vm:
        engine = new_engine()
        module = wasmtime.Module.deserialize(engine, artifacts.load("quickjs"))
        return Vm(engine, module, lambda store: store.set_epoch_deadline(1))

    def _start(self, source: str) -> Outbox:
        outbox, prepared = Outbox(65536), wrap(source)
        assert self.vm.start(prepared, Start(source), outbox)
        self.vm.run(0)
        return outbox

    def _freeze(self, source: str) -> FrozenCell:
        self._start(source)
        return self.vm.freeze()

    def restore(self, frozen: FrozenCell, limits: Limits | None = None) -> bool:
        """Whether it was restored."""
        try:
            self.run(lambda: self.vm.restore(frozen, limits or Limits()))
        except SnapshotError:
            return False
        finally:
            self.run(self.vm.close)
        return True

    def check_alive(self) -> None:
        assert self.run(lambda: self._start("return 1 + 1")).value == b"2"


@pytest.fixture(scope="module")
def vm_thread() -> Iterator[VmThread]:
    thread = VmThread()
    yield thread
    thread.close()


def unpacked(frozen: FrozenCell) -> bytes:
    return zstd.decompress(frozen.pages)


def repacked(frozen: FrozenCell, body: bytes) -> FrozenCell:
    return replace(frozen, pages=zstd.compress(body, level=1))


@pytest.mark.covers("WA-8")
@fuzz(150)
@given(snapshots, st.booleans(), st.booleans(), st.none() | st.integers(-3, 3000))
def test_a_made_up_snapshot_is_refused(
    vm_thread: VmThread,
    frozen: FrozenCell,
    own_image: bool,
    own_pointers: bool,
    memory: int | None,
) -> None:
    small = vm_thread.small
    if own_image:
        frozen = replace(frozen, image=small.image)
    if own_pointers:
        frozen = replace(frozen, pointers=small.pointers)
    frozen = replace(frozen, memory=small.memory if memory is None else memory << 16)

    assert not vm_thread.restore(frozen)
    vm_thread.check_alive()


@pytest.mark.covers("WA-8")
@fuzz(150)
@given(st.booleans(), edits)
def test_compressed_pages_with_wrong_bytes_are_refused_or_restored(
    vm_thread: VmThread, grown: bool, changes: list[tuple[int, bytes, int]]
) -> None:
    frozen = vm_thread.grown if grown else vm_thread.small
    vm_thread.restore(replace(frozen, pages=edited(frozen.pages, changes)))
    vm_thread.check_alive()


@pytest.mark.covers("WA-8")
@fuzz(150)
@given(
    st.booleans(),
    st.none() | st.integers(0, 2**32 - 1),
    st.dictionaries(st.integers(0, 60), st.integers(0, 2**32 - 1), max_size=3),
    edits,
    st.integers(-2, 40),
)
def test_pages_that_do_not_fit_are_refused(
    vm_thread: VmThread,
    grown: bool,
    count: int | None,
    wrong: dict[int, int],
    changes: list[tuple[int, bytes, int]],
    memory: int,
) -> None:
    frozen = vm_thread.grown if grown else vm_thread.small
    body = bytearray(unpacked(frozen))
    (pages,) = struct.unpack_from("<I", body)
    for position, number in wrong.items():
        struct.pack_into("<I", body, 4 + 4 * (position % pages), number)
    if count is not None:
        struct.pack_into("<I", body, 0, count)
    most = frozen.memory // PAGE
    fits = all(number < most for number in struct.unpack_from(f"<{pages}I", body, 4))

    assert vm_thread.restore(repacked(frozen, bytes(body))) == (fits and count in (None, pages))
    forged = repacked(frozen, edited(bytes(body), changes))
    vm_thread.restore(replace(forged, memory=frozen.memory + (memory << 16)))
    vm_thread.check_alive()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A gigabyte of zeros that claims to be as many pages as can be counted."""
    compressor = zstd.ZstdCompressor(level=1)
    chunk = bytes(1 << 20)
    made = [compressor.compress(b"\xff\xff\xff\xff")]
    made += [compressor.compress(chunk) for _ in range(1024)]
    return b"".join([*made, compressor.flush()])


@pytest.mark.covers("WA-12")
@pytest.mark.parametrize("limit", [1 << 20, 64 << 20])
def test_a_bomb_costs_no_more_than_the_memory_it_claims(
    vm_thread: VmThread, bomb: bytes, limit: int
) -> None:
    small = vm_thread.small
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        assert not vm_thread.restore(replace(small, pages=bomb), Limits(memory_bytes=limit))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * small.memory
    vm_thread.check_alive()


@pytest.mark.covers("WA-12")
@pytest.mark.parametrize("memory", [1 << 28, 1 << 32, 1 << 40, (1 << 63) - (1 << 16)])
def test_a_memory_over_the_limit_is_refused_before_it_is_unpacked(
    vm_thread: VmThread, memory: int
) -> None:
    frozen = replace(vm_thread.small, memory=memory, pages=b"never looked at")
    with pytest.raises(SnapshotTooLarge):
        vm_thread.run(lambda: vm_thread.vm.restore(frozen, Limits()))


@pytest.mark.parametrize("pages", [b"", b"x", zstd.compress(b""), zstd.compress(b"\0\0\0")])
def test_pages_that_end_too_early_are_refused(vm_thread: VmThread, pages: bytes) -> None:
    frozen = replace(vm_thread.small, pages=pages)
    with pytest.raises(SnapshotRefused):
        vm_thread.run(lambda: vm_thread.vm.restore(frozen, Limits()))
    vm_thread.check_alive()


flips = st.lists(
    st.tuples(st.integers(0, 2**20), st.integers(1, 255), st.integers(1, 64)),
    min_size=1,
    max_size=12,
)


@pytest.mark.covers("WK-1")
@pytest.mark.anyio
@fuzz(40)
@given(flips, st.booleans())
async def test_a_forged_memory_that_runs_harms_its_own_cell_alone(
    pool: Pool, changes: list[tuple[int, int, int]], again: bool
) -> None:
    source = "let n = 0; for (const k of [1, 2]) { n += await tools.call('t', [k]); text(n) }"
    cell = pool.cell()
    outcome = await pool.step(cell, Start(source), time.monotonic() + 10)
    frozen = await pool.freeze(cell)
    pool.drop(cell)
    body = bytearray(unpacked(frozen))
    first = 4 + 4 * struct.unpack_from("<I", body)[0]
    for place, value, length in changes:
        for at in range(place, place + length):
            body[first + at % (len(body) - first)] ^= value
    forged = pool.cell(repacked(frozen, bytes(body)))
    try:
        while isinstance(outcome, Suspension) and outcome.requests:
            if again:
                await pool.freeze(forged)
            settled = tuple(Settlement(request.id, True, b"1") for request in outcome.requests)
            outcome = await pool.step(forged, Resume(settled), time.monotonic() + 0.2)
    except (RuntimeUnavailable, DeadlineExceeded):
        pass  # the worker died, or hung and was killed
    pool.drop(forged)

    assert isinstance(outcome, Completion | Suspension | Failure)
    assert await finish(pool, "return 1 + 1") == Completion(b"2")


# ---- The value adapter ----


def in_javascript(text: str) -> str:
    r"""A string literal. Without `\u`: the module guard's parser would have to look at it."""
    return "".join(["'", *map(_character, text), "'"])


def _character(character: str) -> str:
    number = ord(character)
    if 0xD800 <= number < 0xE000:
        return f"'+String.fromCharCode({number})+'"
    if number < 0x20 or character in "'\\\x7f":
        return f"\\x{number:02x}"
    return character


def well_formed(text: str) -> str:
    """What JSON makes of a text: pairs are joined, and half a pair is the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


json_numbers = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 5e-324, 1e21, 1e-7, 2**53 + 2, 1.7976931348623157e308, 123456789012e10]),
)
odd_keys = st.sampled_from(
    ["__proto__", "constructor", "toJSON", "then", "length", "toString", "", "0", "\0", "\u2028"]
)
json_values = st.recursive(
    st.none() | st.booleans() | json_numbers | any_text,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(odd_keys | any_text, inner, max_size=4)
    ),
    max_leaves=15,
)


def expression_of(value: object) -> str:
    """JavaScript that makes a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"({value!r})"
        case str():
            return in_javascript(value)
        case list():
            return array_of(map(expression_of, value))
        case dict():
            return object_of((key, expression_of(item)) for key, item in value.items())
    raise AssertionError(value)


def array_of(items: Iterable[str]) -> str:
    return f"[{', '.join(f'({item})' for item in items)}]"


def object_of(pairs: Iterable[tuple[str, str]]) -> str:
    return f"{{ {', '.join(f'[{in_javascript(key)}]: ({item})' for key, item in pairs)} }}"


def map_of(pairs: Iterable[tuple[str, str]]) -> str:
    return f"new Map({array_of(map(array_of, pairs))})"


def as_json_has_it(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case list():
            return [as_json_has_it(item) for item in value]
        case dict():
            return {well_formed(key): as_json_has_it(item) for key, item in value.items()}
    return value


def strict_json(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    # As JavaScript has it: all numbers are floats.
    return json.loads(text.decode("utf-8"), parse_constant=refuse, parse_int=float)


json_pieces = st.sampled_from(
    [
        *(
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b'"',
            b'"a":',
            b"1",
            b"-",
            b".5",
            b"e",
            b"E+",
            b"308",
        ),
        *(b"999", b"9" * 30, b"\\", b"\\u", b"d8", b"D83d", b"dc00", b"NaN", b"Infinity", b"null"),
        *(
            b"\xff",
            b"\xed\xa0\x80",
            b"\xef\xbb\xbf",
            b" ",
            b"\0",
            "é".encode(),
            b"[" * 200,
            b"]" * 200,
        ),
    ]
)


@pytest.mark.covers("S-7")
@fuzz(500)
@given(
    st.one_of(
        st.lists(json_pieces, max_size=12).map(b"".join),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=30),
    )
)
@example(b"1e308")
@example(b'["\\ud83d\\ude00"]')
@example(b"[[1e400]]")
@example(b"9" * 23)
def test_what_is_read_of_a_worker_can_be_written_as_json(text: bytes) -> None:
    try:
        value = read_json(text)
    except ProtocolError:
        return
    assert json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) == value


@pytest.mark.covers("S-7")
def test_the_check_of_long_texts_of_a_worker_takes_little_time() -> None:
    """It runs on the event loop: 38 times as long as the parsing, with a regular expression."""
    text = json.dumps("some words, 17 of them. " * (1 << 15)).encode()

    def seconds(read: Callable[[bytes], object]) -> float:
        return min(timeit.repeat(lambda: read(text), timer=time.thread_time, number=1, repeat=20))

    assert seconds(read_json) < 15 * seconds(json.loads)


@pytest.mark.anyio
@pytest.mark.covers("OU-2")
@fuzz(200)
@given(json_values)
@example({"__proto__": {"toJSON": "\ud800\udc00\udc00"}})
@example([-0.0, 5e-324, 1e21, 0.1, 2**53, 1.7976931348623157e308])
@example(4.896296884058215e16)
async def test_a_json_value_arrives_as_it_is(pool: Pool, value: object) -> None:
    source = f"const value = [{expression_of(value)}]; json(value); text(value); return value"

    outcome = await finish(pool, source)

    assert isinstance(outcome, Completion), outcome
    assert strict_json(outcome.value) == [as_json_has_it(value)]
    emitted, told = outcome.output
    assert (emitted.type, emitted.body) == ("json", outcome.value)
    assert (told.type, strict_json(told.body)) == ("text", outcome.value.decode())


ODD = (
    "undefined",
    "NaN",
    "-Infinity",
    "10n ** 40n",
    "Symbol()",
    "Symbol('s')",
    "() => 1",
    "async () => 1",
    "function* f() {}",
    "class A {}",
    "new Date(0)",
    "new Date(NaN)",
    "new Date(8.64e15)",
    "/x\\n/gu",
    "new Error('e')",
    "new TypeError('e', { cause: [1] })",
    "new AggregateError([1, 2])",
    "new Uint8Array(3)",
    "new Float64Array(2)",
    "new ArrayBuffer(5)",
    "new DataView(new ArrayBuffer(2))",
    "new ArrayBuffer(2, { maxByteLength: 4 })",
    "Object(1)",
    "Object('s')",
    "Object(1n)",
    "Object(Symbol('s'))",
    "Object(false)",
    "new WeakMap()",
    "new WeakRef({})",
    "Promise.resolve(1)",
    "new Promise(() => {})",
    "[, , 1]",
    "Array(3)",
    "(function () { return arguments })(1, 2)",
    "(function* () { yield 1 })()",
    "[1].values()",
    "Math",
    "console",
    "tools",
    "new URL('http://a/?b')",
    "new URLSearchParams('a=b')",
    "new TextEncoder()",
    "Object.create(null)",
    "Object.prototype",
    "Array.prototype",
    "Map.prototype",
    "Date.prototype",
    "RegExp.prototype",
    "Uint8Array.prototype",
    "Error.prototype",
    "Promise.prototype",
    "Symbol.prototype",
    "Function.prototype",
    "new Proxy({}, {})",
    "new Proxy(() => 1, {})",
    "new Proxy(new Map(), {})",
    "new Proxy(new Date(), {})",
    "(() => { const r = Proxy.revocable({}, {}); r.revoke(); return r.proxy })()",
    "(() => { const r = Proxy.revocable([], {}); r.revoke(); return r.proxy })()",
    "new Proxy({}, { get() { throw 1 } })",
    "new Proxy({}, { ownKeys() { throw null } })",
    "new Proxy({}, { getPrototypeOf() { throw undefined } })",
    "new Proxy([1], { get() { throw {} } })",
    "new Proxy([], { get: () => 3 })",
    "new Proxy([], { get: () => ({}) })",
    "new Proxy({ a: 1 }, { get: (target, key, proxy) => proxy })",
    "new Proxy({}, { has: () => true, get: () => 'x' })",
    "({ get x() { throw new Error('g') } })",
    "({ get x() { throw {} } })",
    "Object.defineProperty(new Error('m'), 'name', { get() { throw 1 } })",
    "Object.assign(new Error('m'), { name: Symbol('n'), stack: 5 })",
    "({ toJSON() { throw this } })",
    "({ toJSON() { return this } })",
    "({ toJSON() { return { toJSON: this.toJSON } } })",
    "({ toJSON() { return [this, this] } })",
    "({ toJSON: 5 })",
    "({ get toJSON() { throw 1 } })",
    "Object.assign([1], { toJSON() { return 2 } })",
    "Object.assign(new Date(0), { toJSON() { return 2 } })",
    "({ then() {} })",
    "({ valueOf() { throw 1 }, toString() { throw 2 } })",
    "new (class extends Map { get size() { throw 1 } })([[1, 2]])",
    "new (class extends Map { forEach() { throw 1 } })([[1, 2]])",
    "new (class extends Array {})(1, 2)",
    "new (class { constructor() { this.constructor = null } })()",
    "new (class extends Uint8Array { get byteLength() { return { toString() { throw 1 } } } })(2)",
    "Object.assign(() => 1, { toJSON() { return 1 } })",
    "Object.defineProperty(() => 1, 'name', { get() { throw 1 } })",
    "Object.setPrototypeOf({ a: 1 }, Map.prototype)",
    "Object.setPrototypeOf(new Map([[1, 2]]), null)",
    "Object.setPrototypeOf([1], null)",
    "Object.setPrototypeOf(new Error('e'), null)",
    "(() => { const b = new ArrayBuffer(8), v = new DataView(b); b.transfer(); return v })()",
    "(() => { const e = new Error('e'); e.cause = e; e.errors = [e]; return e })()",
    "(() => { const s = new Set(); s.add(s); return s })()",
    "(() => { let deep = 1; for (let i = 0; i < 1000; i++) deep = { deep }; return deep })()",
)
WRAPPED = (
    "{ get x() { return (%s) } }",
    "{ get x() { throw (%s) } }",
    "{ toJSON() { return (%s) } }",
    "{ toJSON() { throw (%s) } }",
    "Object.assign(new RangeError('r'), { extra: (%s) })",
    "Object.assign(Object(%s), { more: 1 })",
    "new Proxy(Object(%s), {})",
    "new (class Odd { field = (%s) })()",
    "(() => { const o = { a: (%s) }; o.o = o; return o })()",
    "(() => { const m = new Map(); m.set(m, (%s)); return m })()",
    "Object.create({ inherited: 1 }, { own: { value: (%s), enumerable: true } })",
)

odd_values = st.recursive(
    st.sampled_from(ODD) | json_values.map(expression_of),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(array_of),
        st.lists(inner, max_size=3).map(lambda items: f"new Set({array_of(items)})"),
        st.lists(st.tuples(odd_keys | any_text, inner), max_size=3).map(object_of),
        st.lists(st.tuples(inner, inner), max_size=3).map(map_of),
        st.builds(lambda form, item: form.replace("%s", item), st.sampled_from(WRAPPED), inner),
    ),
    max_leaves=6,
)


async def check_adapter(pool: Pool, expression: str) -> None:
    source = f"""let value;
try {{ value = ({expression}) }} catch {{ value = "not made" }}
try {{ json([value]); text([value]); console.log(value) }} catch {{ return "thrown" }}
return [value]"""
    outcome = await finish(pool, source)

    assert isinstance(outcome, Completion), outcome
    assert isinstance(strict_json(outcome.value), list)
    emitted, told, _ = outcome.output
    assert isinstance(strict_json(emitted.body), list)
    assert isinstance(strict_json(strict_json(told.body).encode()), list)


@pytest.mark.anyio
@pytest.mark.covers("OU-2")
@pytest.mark.parametrize("expression", ODD)
async def test_an_odd_value_has_a_json_form(pool: Pool, expression: str) -> None:
    await check_adapter(pool, expression)


@pytest.mark.anyio
@pytest.mark.covers("OU-2")
@fuzz(300)
@given(odd_values)
async def test_any_value_has_a_json_form_and_the_adapter_does_not_throw(
    pool: Pool, expression: str
) -> None:
    await check_adapter(pool, expression)


# ---- The output budget ----


def item_bytes(item: Output) -> int:
    """What an item takes in the JSON of a result, its comma included."""
    key = b"text" if item.type == "text" else b"value"
    return len(b'{"type":"%s","%s":%s},' % (item.type.encode(), key, item.body))


emissions = st.lists(
    st.tuples(st.sampled_from(["text", "json"]), st.text(max_size=40)), min_size=1, max_size=6
)


@pytest.mark.anyio
async def test_items_of_both_types_are_counted_in_full(pool: Pool) -> None:
    for call in ("json(1);", "text(1);"):
        outcome = await finish(pool, call * 100, output_left=1000)
        assert sum(map(item_bytes, outcome.output)) <= 1001, "the last item has no comma"


@pytest.mark.anyio
async def test_a_cut_within_a_surrogate_pair_is_counted_right(pool: Pool) -> None:
    outcome = await finish(pool, "json('00\U00010000')", output_left=4)

    assert isinstance(outcome, Failure)
    assert " 8 bytes were left out" in outcome.error


@pytest.mark.anyio
async def test_what_is_not_emitted_is_not_counted(pool: Pool) -> None:
    """The reason of a yield is no output, however long it is."""
    start = Start("yield_control(['x'.repeat(1000)]); json(1)", output_left=500)
    cell = pool.cell()
    outcome = await pool.step(cell, start, time.monotonic() + 10)
    pool.drop(cell)

    assert isinstance(outcome, Suspension)
    assert outcome.output == (Output("json", b"1"),)


@pytest.mark.anyio
async def test_the_prefix_of_a_value_survives_a_deadline_that_comes_while_it_is_counted(
    pool: Pool,
) -> None:
    with patience():
        outcome = await finish(pool, "return Array(1e8)", seconds=0.5, output_left=1000)

    assert isinstance(outcome, Failure)
    assert outcome.code == "output_limit_exceeded"
    assert json.loads(outcome.output[0].body).startswith("[null,null,null,")


@pytest.mark.anyio
@pytest.mark.covers("OU-1", "OU-3", "OU-4", "OU-5", "ER-output_limit_exceeded")
@fuzz(200)
@given(emissions, st.integers(0, 300))
async def test_the_longest_prefix_of_the_output_is_kept(
    pool: Pool, emitted: list[tuple[str, str]], limit: int
) -> None:
    whole = [
        Output("text" if kind == "text" else "json", json_string(text)) for kind, text in emitted
    ]
    calls = (f"{kind}({in_javascript(text)});" for kind, text in emitted)

    outcome = await finish(pool, "".join([*calls, "return 1"]), output_left=limit)

    kept = list(outcome.output)
    texts = [item for item in kept if item.type == "text"]
    assert sum(map(item_bytes, texts)) <= limit + 1, "the last item has no comma"
    if isinstance(outcome, Completion):
        assert kept == whole
        return
    assert outcome.code == "output_limit_exceeded"
    # Items as they are, then at most one that was cut, as text.
    same = next((i for i, item in enumerate(kept) if item != whole[i]), len(kept))
    assert kept[:same] == whole[:same]
    assert len(kept) - same <= 1
    if same < len(whole):
        body = whole[same].body.decode()
        full = json.loads(body) if whole[same].type == "text" else body
        cut = json.loads(kept[same].body) if same < len(kept) else ""
        assert full.startswith(cut)
        if cut != full:
            more = Output("text", json_string(full[: len(cut) + 1]))
            assert sum(map(item_bytes, [*whole[:same], more])) > limit, "it would have fitted"
        assert f"{len(full.encode()) - len(cut.encode())} bytes" in outcome.error


@fuzz(300)
@given(st.text(max_size=40), st.integers(-5, 90))
@example('"\\\n\x00', 10)
@example("\U0001f600" * 3, 9)
def test_the_longest_prefix_fits_and_one_character_more_does_not(text: str, room: int) -> None:
    kept = longest_prefix(text.encode(), room)

    assert text.startswith(kept)
    assert kept == "" or len(json_string(kept)) <= room
    if len(kept) < len(text):
        assert len(json_string(text[: len(kept) + 1])) > room


@fuzz(200)
@given(st.binary(max_size=60), st.integers(-5, 90))
@example(b"\xed\xa0\x80abc", 20)
def test_a_prefix_of_what_is_not_utf_8_fits_too(text: bytes, room: int) -> None:
    kept = longest_prefix(text, room)

    assert text.decode("utf-8", "ignore").startswith(kept)
    assert kept == "" or len(json_string(kept)) <= room


# ---- Sources ----

WORDS = r"""
    await async return throw new class extends function* => ( ) [ ] { } ` ${ ' " \ / /* */ // <!--
    --> ; , . ... ?. ?? : ? = == + ++ - ! ~ @ # #x in of instanceof typeof delete void yield let
    const var if else switch case break continue label: try catch finally with debugger import
    export require eval enum interface type namespace declare as satisfies is keyof abstract super
    this null undefined 0 1 0n 1e999 .5 0x /x/g a b c tools text json 'use_strict' ls -la $ #!
""".split()
words = st.sampled_from([*WORDS, "\n", "\r\n", "\u2028", "\u00a0", "\ufeff", "\t", "\0"])
sources = st.lists(words | sound_text, max_size=12).map(" ".join) | sound_text

HOST_WORDS = ("prelude", "web.js", "guard", "acorn", "clawmode", ".py", "Traceback", "swc", "wasm")


def check_failure(failed: Failure, source: str) -> None:
    assert failed.code in ERROR_CODES
    assert failed.error
    assert not failed.crashed, failed
    assert not failed.error.startswith("The sandbox failed"), failed
    told = [word for word in HOST_WORDS if word in failed.error and word not in source]
    assert not told, failed.error
    assert failed.error.encode(), "it can be sent on"


async def check_source(pool: Pool, source: str, language: Language) -> None:
    cell = pool.cell()
    outcome = await pool.step(cell, Start(source, language), time.monotonic() + 5)
    pool.drop(cell)  # else it would stay in a worker of all other tests

    assert isinstance(outcome, Completion | Suspension | Failure)
    if isinstance(outcome, Failure):
        check_failure(outcome, source)


@pytest.mark.anyio
@pytest.mark.covers("IN-7")
@fuzz(250)
@given(sources, st.sampled_from(LANGUAGES))
@example("\0", "javascript")
@example("}); (async function () {", "javascript")
@example("}, async function () {", "typescript")
@example("x\u2028throw null", "javascript")
@example("\t\t)", "javascript")
@example("throw Object.assign(new Error(''), { name: '\\ud800' })", "javascript")
@example("throw Object.assign(new Error(''), { stack: 'at x (prelude.js:1:1)' })", "javascript")
@example("new URL('/')", "javascript")
@example("structuredClone(() => 1)", "typescript")
@example("tools.call({ toJSON() { throw new Error('t') } })", "javascript")
async def test_any_source_ends_as_an_outcome(pool: Pool, source: str, language: Language) -> None:
    await check_source(pool, source, language)


@pytest.mark.anyio
@fuzz(50)
@given(any_text, st.sampled_from(LANGUAGES))
@example("return '", "javascript")
@example("return '", "typescript")
@example("let ", "javascript")
@example("/*", "javascript")
async def test_half_a_surrogate_pair_in_a_source_does_no_harm(
    pool: Pool, source: str, language: Language
) -> None:
    await check_source(pool, f"{source}\ud800", language)


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["'9'.repeat(5000) + ':1'", "'1:' + '9'.repeat(5000)"])
async def test_a_stack_that_a_program_made_up_does_not_hide_its_error(
    pool: Pool, place: str
) -> None:
    source = f"throw Object.assign(new Error('mine'), {{ stack: 'at cell:' + {place} }})"
    outcome = await finish(pool, source)

    assert isinstance(outcome, Failure)
    assert outcome.error.startswith("Error: mine")


frames = st.one_of(
    st.builds(
        "    at {} ({}:{}:{})".format,
        sound_text | st.sampled_from(["f", "<anonymous>", "get x", "a (b"]),
        st.sampled_from(["cell", "prelude.js", "web.js", "cell:1", "native", ""]),
        st.integers(-1, 10**30) | sound_text,
        st.integers(-1, 10**30),
    ),
    sound_text,
)


@pytest.mark.covers("IN-7")
@fuzz(300)
@given(
    st.sampled_from(["error", "tool", "memory"]),
    any_text,
    any_text,
    st.lists(frames, max_size=20).map("\n".join),
    any_text | sources,
    st.booleans(),
)
@example("error", "E", "m", "    at f (cell:1:1000000000000)", "x", True)
@example("error", "E", "m", "    at f (cell:0:0)", "", True)
@example("error", "E", "m", "    at f (prelude.js:1:1)\n    at g (cell:1:1)", "", False)
def test_any_report_of_a_failure_can_be_described(
    kind: str, name: str, message: str, stack: str, source: str, compiling: bool
) -> None:
    told = {"kind": kind, "name": name, "message": message, "stack": stack}
    told |= {"origin": "\n" + source if compiling else "", "source": f"{HEAD[1:]}{source}"}
    report = json.dumps({**told, "tool": None}).encode()

    code, text = describe_failure(report, Start(source), CompileFailure() if compiling else None)

    assert code in ERROR_CODES
    rest = text.removeprefix(f"{name}: {message}").removeprefix(name)
    if not compiling:
        assert all("(cell:" in line for line in rest.splitlines() if line.startswith("    at "))
    assert len(text) <= len(name) + len(message) + len(stack) + len(source) + 1000


# ---- What a cell leaves in its worker ----


@pytest.mark.hostile
@pytest.mark.parametrize("copies", [1, 3_000, 200_000], ids=["small", "grown", "dropped"])
@pytest.mark.parametrize("early", [True, False], ids=["after the answer", "at the next start"])
def test_nothing_of_a_cell_is_left_for_the_next(
    vm_thread: VmThread, copies: int, early: bool
) -> None:
    """The memory is replaced after the answer was sent, or at the latest when a cell starts."""
    secret = "the secret of the first tenant"
    source = f"globalThis.kept = [...Array({copies})].map((_, i) => {secret!r} + i); return 1"

    def memory() -> bytes:
        machine = vm_thread.vm._machine
        assert machine is not None
        return machine.instance.read(0, machine.instance.memory_size())

    vm_thread.run(lambda: vm_thread._start(source))
    assert vm_thread.run(memory).count(secret.encode()) >= copies
    vm_thread.run(vm_thread.vm.close)
    if early:
        vm_thread.run(vm_thread.vm.lay_out)
        assert secret.encode() not in vm_thread.run(memory)
    assert vm_thread.run(lambda: vm_thread._start("return typeof kept")).value == b'"undefined"'
    assert secret.encode() not in vm_thread.run(memory)
