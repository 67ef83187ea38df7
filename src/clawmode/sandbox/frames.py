"""Both sides: messages as frames, and the parent's checks of everything that a worker sends.

A frame is a length (u32, big-endian) and msgpack: kind, number, fields. The number counts the
parent's messages, and the answer repeats it. The parent's peer is a process that runs hostile code,
so decoding an answer checks every field.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NoReturn

import msgpack

from clawmode.exceptions import ProtocolError
from clawmode.sandbox.images import MAX_IMAGES, MAX_IMAGES_CHARS, media_type
from clawmode.sandbox.protocol import (
    ITEM_BYTES,
    MAX_ERROR,
    MAX_REQUEST,
    MAX_STATE_BYTES,
    MAX_STATE_KEYS,
    MAX_STATE_NAME,
    MAX_STATE_VALUE,
    METHODS,
    Acknowledgement,
    Answer,
    Boot,
    Completion,
    Failure,
    Fork,
    Freeze,
    FrozenCell,
    Install,
    Limits,
    Output,
    Provide,
    Question,
    Request,
    Resume,
    Settlement,
    Start,
    Stored,
    Suspension,
)
from clawmode.types import ERROR_CODES, JsonText, JsonValue, children

MAX_FRAME = 512 << 20
"""Bytes. The largest honest frame is a frozen cell at the largest limits, incompressible."""

MAX_DEPTH = 128
"""Levels that a value can have. The prelude cuts values at 100 levels."""

HEADER = struct.Struct(">I")
WORD = 1 << 32

_QUESTIONS = {kind.kind: kind for kind in (Boot, Fork, Provide, Install, Freeze)}


def _reader(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that reads the fields of a message, in order."""
    names = [item.name for item in fields(kind) if "local" not in item.metadata]
    if len(names) < 2:
        return lambda message: tuple(getattr(message, name) for name in names)
    return attrgetter(*names)


_FIELDS = {
    kind: _reader(kind)
    for kind in (
        *(Boot, Fork, Provide, Install, Start, Resume, Freeze),
        *(Acknowledgement, Completion, Suspension, Failure, FrozenCell),
        *(Limits, Settlement, Request, Output),
    )
}


def _fields(value: Any) -> tuple[Any, ...]:
    return _FIELDS[type(value)](value)


def encode(message: Question | Answer, number: int) -> bytes:
    """Encodes a message as one frame."""
    # A submitted source may hold lone surrogates; an answer never does.
    packer = msgpack.Packer(default=_fields, use_bin_type=True, unicode_errors="surrogatepass")
    body = packer.pack([message.kind, number, *_fields(message)]) or b""
    return HEADER.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """Returns the length of a frame's body.

    Raises:
        ProtocolError: The length is over `MAX_FRAME`.
    """
    length = int(HEADER.unpack(header)[0])
    if length > MAX_FRAME:
        raise ProtocolError(f"a frame of {length} bytes; at most {MAX_FRAME} are allowed")
    return length


def _unpack(body: bytes, most: int, unicode_errors: str = "strict") -> list[Any]:
    try:
        message = msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_ext_len=0,
            max_array_len=most,
            unicode_errors=unicode_errors,
        )
    except Exception as error:
        # msgpack raises a dozen types, ValueError and RecursionError among them.
        raise ProtocolError(f"the frame is not msgpack: {type(error).__name__}") from None
    if isinstance(message, list) and len(message) > 1:
        if isinstance(message[0], str) and isinstance(message[1], int):
            return message
    raise ProtocolError("the frame is not a list that starts with kind and number")


def decode_question(body: bytes) -> tuple[Question, int]:
    """Worker side: decodes a question. The parent is trusted, so fields are not checked."""
    kind, number, *values = _unpack(body, len(body), "surrogatepass")
    if kind == "start":
        source, language, limits, *rest = values
        return Start(source, language, Limits(*limits), *rest), number
    if kind == "resume":
        settled, frozen, limits, *rest = values
        replies = tuple(Settlement(*item) for item in settled)
        image = None if frozen is None else _frozen(frozen)
        return Resume(replies, image, Limits(*limits), *rest), number
    return _QUESTIONS[kind](*values), number


def decode_answer(body: bytes, number: int, most: int = 4096) -> Answer:
    """Parent side: decodes an answer.

    Args:
        body: The frame without its length.
        number: The number of the question, which the answer must repeat.
        most: The number of items that a list in the answer may have.

    Raises:
        ProtocolError: The frame is not a well-formed answer to that question.
    """
    kind, answered, *values = _unpack(body, most)
    if answered != number:
        raise ProtocolError(f"an answer to message {answered}, expected one to {number}")
    try:
        return _ANSWERS[kind](values)
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the answer {kind!r} is malformed: {type(error).__name__}") from None


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _ready(values: list[Any]) -> Acknowledgement:
    image, notes, built = values
    texts = tuple(_typed(note, str) for note in notes)
    return Acknowledgement(_typed(image, bytes), texts, _typed(built, bytes))


def _frozen(values: list[Any]) -> FrozenCell:
    image, memory, pointers, pages, heap = values
    runtime, context, stack = (_word(pointer) for pointer in pointers)
    return FrozenCell(
        _typed(image, bytes),
        _word(memory),
        (runtime, context, stack),
        _typed(pages, bytes),
        _word(heap),
    )


def _word(value: Any) -> int:
    """Returns a number that fits a 32-bit word of the guest: an address, a length, an id."""
    if not 0 <= _typed(value, int) < WORD:
        raise ProtocolError(f"{value} does not fit into a 32-bit word")
    return int(value)


def _outputs(values: Iterable[Any]) -> tuple[Output, ...]:
    made = []
    for kind, body in values:
        if kind not in ("text", "json", "image"):
            raise ProtocolError(f"unknown output type {kind!r}")
        made.append(Output(kind, _typed(body, bytes)))
    return tuple(made)


def _requests(values: Iterable[Any]) -> tuple[Request, ...]:
    made = []
    for number, method, args in values:
        if method not in METHODS:
            raise ProtocolError(f"unknown method {method!r}")
        if type(number) is not int or type(args) is not bytes or not 0 <= number < WORD:
            number, args = _word(number), _typed(args, bytes)  # which says what is wrong
        made.append(Request(number, method, args))
    return tuple(made)


def _stored(values: list[Any]) -> Stored:
    if values == []:
        return ()
    made: dict[str, JsonText | None] = {}
    size = 0
    for key, value in values:
        made[_typed(key, str)] = value if value is None else _typed(value, bytes)
        if len(key.encode()) > MAX_STATE_NAME or len(value or b"") > MAX_STATE_VALUE:
            raise ProtocolError("a key or value over its limit was stored")
        size += len(value or b"")
    # A program may delete all keys that it found, and store as many again.
    if len(made) > 2 * MAX_STATE_KEYS or size > MAX_STATE_BYTES:
        raise ProtocolError(f"{len(made)} keys and {size} bytes were stored")
    for value in made.values():
        if value is not None:
            read_json(value)
    return tuple(made.items())


def _done(values: list[Any]) -> Completion:
    value, output, stored, unmade = values
    return Completion(_typed(value, bytes), _outputs(output), _stored(stored), _word(unmade))


def _suspended(values: list[Any]) -> Suspension:
    requests, timers, due, output, frozen_at_most, waiting, stored = values
    if not (math.isfinite(_typed(due, float)) and due >= 0 and _typed(timers, int) >= 0):
        raise ProtocolError(f"{timers} timers due at {due}")
    made = _requests(requests)
    size, waiting = _word(frozen_at_most), _word(waiting)
    return Suspension(made, timers, due, _outputs(output), size, waiting, _stored(stored))


def _failed(values: list[Any]) -> Failure:
    code, error, output, requests, crashed, waiting, stored = values
    if code not in ERROR_CODES:
        raise ProtocolError(f"unknown error code {code!r}")
    emitted, made = _outputs(output), _requests(requests)
    text, crashed = _typed(error, str), _typed(crashed, bool)
    return Failure(code, text, emitted, made, crashed, _word(waiting), _stored(stored))


_ANSWERS = {
    "ready": _ready,
    "frozen": _frozen,
    "done": _done,
    "suspended": _suspended,
    "failed": _failed,
}


# ---- JSON of the guest, in the parent ----


def read_json(text: JsonText) -> JsonValue:
    """Parses JSON that a worker sent.

    Raises:
        ProtocolError: The prelude cannot have written this text: it is not UTF-8 or not JSON, or it
            has a number, half of a surrogate pair or a depth that the prelude never writes.
    """
    # The careful decoder calls Python for every number, so only suspicious texts pay for it.
    shape = text.translate(_SHAPES)
    decoder = _QUICK
    for each in _SUSPICIOUS:  # not `any`, whose generator would take longer than the search
        if each in shape:
            decoder = _CAREFUL
    value: JsonValue
    try:
        decoded = text.decode()
        value, end = decoder.raw_decode(decoded)
        if end != len(decoded):
            raise ValueError
        if decoder is _CAREFUL:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON of the prelude: {type(error).__name__}") from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _levels(value) > MAX_DEPTH:
        raise ProtocolError(f"a value of more than {MAX_DEPTH} levels")
    return value


# A regular expression would take twenty times as long, and this runs on the event loop.
_SHAPES = bytes.maketrans(b"123456789ED", b"000000000ed")
_SUSPICIOUS = (b"0" * 22, b"e000", b"e+000", b"\\ud")


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:30]} is not a JavaScript number")


def _integer(text: str) -> int:
    # JavaScript writes larger integers with an exponent.
    return int(text) if len(text) <= 22 else _refuse_number(text)


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


_QUICK = json.JSONDecoder(parse_constant=_refuse_number)
_CAREFUL = json.JSONDecoder(parse_constant=_refuse_number, parse_int=_integer, parse_float=_float)


def _levels(value: JsonValue) -> int:
    level, levels = [value], 0
    while level:
        levels += 1
        level = [child for item in level for child in children(item)]
    return levels


# ---- Whether an answer fits its question ----


def answer_bounds(question: Question) -> tuple[int, int]:
    """Returns the largest honest answer to a question: bytes, and items of a list in it."""
    if isinstance(question, Start | Resume):
        limits, left = question.limits, question.output_left
        # Requests were text in the guest's heap; output has a limit of its own.
        items = max(limits.max_calls + limits.max_others, left // ITEM_BYTES["text"])
        return 2 * limits.memory_bytes + left + MAX_STATE_BYTES + (1 << 20), items + 16
    return (MAX_FRAME if isinstance(question, Freeze) else 1 << 16), 64


def verify(question: Question, answer: Answer) -> Answer:
    """Returns the answer with its JSON parsed.

    Raises:
        ProtocolError: The answer does not belong to the question, or exceeds its limits.
    """
    match question, answer:
        case (Start() | Resume()) as asked, (Completion() | Suspension() | Failure()):
            _check_limits(asked, answer)
            output = tuple(map(_parse_output, answer.output))
            if isinstance(answer, Completion):
                parsed = read_json(answer.value)
                return Completion(answer.value, output, answer.stored, answer.unmade, parsed)
            return replace(answer, output=output) if output else answer
        case ((Boot() | Provide() | Install()), Acknowledgement()):
            return answer
        case Freeze(), FrozenCell() | Failure():
            return answer
        case _:
            raise ProtocolError(f"{answer.kind!r} as answer to {question.kind!r}")


def _check_limits(asked: Start | Resume, answer: Completion | Suspension | Failure) -> None:
    size = len(answer.value) if isinstance(answer, Completion) else 0
    if answer.output:
        size += sum(item.size for item in answer.output)
        images = [len(item.body) for item in answer.output if item.type == "image"]
        if len(images) > MAX_IMAGES or sum(images) > MAX_IMAGES_CHARS:
            raise ProtocolError(f"{len(images)} images of {sum(images)} bytes")
    if size > asked.output_left:
        raise ProtocolError(f"{size} bytes of output, {asked.output_left} allowed")
    if isinstance(answer, Failure) and len(answer.error) > MAX_ERROR:
        raise ProtocolError(f"an error of {len(answer.error)} characters")
    requests = () if isinstance(answer, Completion) else answer.requests
    if len(requests) > asked.limits.max_calls + asked.limits.max_others:
        raise ProtocolError(f"{len(requests)} requests")
    last = -1
    for request in requests:
        if len(request.args) > 4 * MAX_REQUEST:
            raise ProtocolError("a request over its limit")
        if request.id <= last:
            raise ProtocolError("requests out of order")
        last = request.id


def _parse_output(item: Output) -> Output:
    if item.type == "image":
        kind = media_type(item.body)
        if not kind:
            raise ProtocolError("an attachment that is no image")
        return Output("image", item.body, {"mimeType": kind, "data": item.body.decode()})
    value = read_json(item.body)
    if item.type == "text" and not isinstance(value, str):
        raise ProtocolError(f"text output that is {type(value).__name__}")
    return Output(item.type, item.body, value)
