"""Both sides: what parent and worker say to each other, as data, and how it is framed.

The parent sends one message and the worker answers it with one message; neither says anything in
between. JSON of the guest (values, arguments, output) travels as text; the parent parses it with
`read_json`. A frame is a length (u32, big-endian) and msgpack: kind, number, fields. The number
counts the parent's messages, and the answer repeats it. What the parent reads was written by a
process that runs hostile code, so decoding checks every field.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, get_args

import msgpack

from clawmode.exceptions import ERROR_CODES, ErrorCode, ProtocolError
from clawmode.types import JsonText, JsonValue

Language: TypeAlias = Literal["javascript", "typescript"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Method: TypeAlias = Literal["call", "search", "describe", "namespace", "api", "yield"]
METHODS: tuple[Method, ...] = get_args(Method)
Part: TypeAlias = Literal["quickjs", "swc", "acorn"]

MAX_FRAME = 512 << 20
"""A frame no honest peer exceeds: a whole memory at its largest clamp, incompressible."""

MAX_SOURCE = 1 << 20
MAX_REQUEST = 1 << 20
MAX_REPLY = 8 << 20
MAX_ERROR = 64 << 10
MAX_SETUPS = 16
MAX_DEPTH = 128
"""Levels that a value can have. The prelude cuts values at 100 levels."""

ITEM_BYTES = {"text": 24, "json": 25}
"""What an item of output costs beside its body: braces, keys, the comma."""

PAGE = 4096

HEADER = struct.Struct(">I")

_LOCAL = {"local": True}
"""Marks a field that is not part of the frame."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cell may use. Numbers are the page's, already clamped."""

    memory_bytes: int = 64 << 20
    max_calls: int = 16 + 128
    max_others: int = 1024
    snapshot_bytes: int = 10 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """Something the guest asks the host for; it stays open until a `Settlement` names its id."""

    id: int
    method: Method
    args: JsonText


@dataclass(frozen=True, slots=True)
class Settlement:
    """The host's answer to a request: a value, or an error as `{name, message, code, toolId}`."""

    id: int
    ok: bool
    value: JsonText


@dataclass(frozen=True, slots=True)
class Output:
    """One thing the guest emitted; `body` is the JSON of a string or of a value.

    `parsed` is the value of `body`. Only the parent sets it; it is not part of the frame.
    """

    type: Literal["text", "json"]
    body: JsonText
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)

    @property
    def size(self) -> int:
        """What it takes of the budget, in a result."""
        return len(self.body) + ITEM_BYTES[self.type]


@dataclass(frozen=True, slots=True)
class FrozenCell:
    """A cell's memory as its difference to the image; `pages` are zstd-compressed.

    `heap` is what the cell had on its heap when it started: its catalog and namespaces.
    """

    kind: ClassVar[str] = "frozen"
    image: bytes
    memory: int
    pointers: tuple[int, int, int]
    pages: bytes
    heap: int = 0


@dataclass(frozen=True, slots=True)
class Boot:
    """The first message a worker gets: what to run guests with."""

    kind: ClassVar[str] = "boot"
    quickjs: bytes


@dataclass(frozen=True, slots=True)
class Provide:
    """A part that a worker needs from now on: the TypeScript transformer, or the parser."""

    kind: ClassVar[str] = "provide"
    part: Part
    data: bytes


@dataclass(frozen=True, slots=True)
class Install:
    """Makes the image that a run's cells start from: the catalog and namespaces in `data`.

    A worker keeps the last `MAX_SETUPS`, in the order in which they came.
    """

    kind: ClassVar[str] = "install"
    key: bytes
    data: JsonText


@dataclass(frozen=True, slots=True)
class Start:
    """Runs a new cell until it is idle. `setup` is the key of what was installed for it."""

    kind: ClassVar[str] = "start"
    source: str
    language: Language = "javascript"
    limits: Limits = Limits()
    output_left: int = 65536
    budget: float = 10.0
    setup: bytes = b""

    def needs(self) -> tuple[Part, ...]:
        """The parts that this source cannot be prepared without."""
        parts: list[Part] = []
        if self.language == "typescript":
            parts.append("swc")
        if _names_modules(self.source):
            parts.append("acorn")
        return tuple(parts)


def _names_modules(source: str) -> bool:
    """Whether a text can reach a module at all: nearly none can, and parsing takes long."""
    if "\\u" in source:
        source = _ESCAPE.sub(_unescape, source)
    return "import" in source or "require" in source


_ESCAPE = re.compile(r"\\u(?:\{([0-9a-fA-F]+)\}|([0-9a-fA-F]{4}))")


def _unescape(escape: re.Match[str]) -> str:
    return chr(min(int(escape[1] or escape[2], 16), 0x10FFFF))


@dataclass(frozen=True, slots=True)
class Resume:
    """Lets a cell go on: the warm one, or the one in `frozen`."""

    kind: ClassVar[str] = "resume"
    settled: tuple[Settlement, ...] = ()
    frozen: FrozenCell | None = None
    limits: Limits = Limits()
    output_left: int = 65536
    budget: float = 10.0
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Freeze:
    """Asks for the warm cell's memory. The worker holds no cell afterwards."""

    kind: ClassVar[str] = "freeze"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The worker can take cells; `image` is the hash of the memory they start from."""

    kind: ClassVar[str] = "ready"
    image: bytes = b""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The cell is complete: nothing is pending. `parsed` is the value of `value`; see `Output`."""

    kind: ClassVar[str] = "done"
    value: JsonText
    output: tuple[Output, ...] = ()
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)


@dataclass(frozen=True, slots=True)
class Suspension:
    """The cell is idle and warm: it waits for requests, or for a timer that is due at `due`.

    `timers` counts timeouts; without any, an interval counts while the main promise is pending.
    Frozen, it takes at most `frozen_at_most` bytes.
    """

    kind: ClassVar[str] = "suspended"
    requests: tuple[Request, ...] = ()
    timers: int = 0
    due: float = 0.0
    output: tuple[Output, ...] = ()
    frozen_at_most: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The cell has failed and is gone. `requests` were made and must not be dispatched.

    `crashed` says that the guest broke the sandbox's own code: the worker is not to be kept.
    """

    kind: ClassVar[str] = "failed"
    code: ErrorCode
    error: str
    output: tuple[Output, ...] = ()
    requests: tuple[Request, ...] = ()
    crashed: bool = False


Question: TypeAlias = Boot | Provide | Install | Start | Resume | Freeze
Outcome: TypeAlias = Completion | Suspension | Failure
Answer: TypeAlias = Acknowledgement | Completion | Suspension | Failure | FrozenCell

_QUESTIONS = {kind.kind: kind for kind in (Boot, Provide, Install, Freeze)}


def _reader(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the fields of a message in order."""
    names = [item.name for item in fields(kind) if "local" not in item.metadata]
    if len(names) < 2:
        return lambda message: tuple(getattr(message, name) for name in names)
    return attrgetter(*names)


_FIELDS = {
    kind: _reader(kind)
    for kind in (
        *(Boot, Provide, Install, Start, Resume, Freeze),
        *(Acknowledgement, Completion, Suspension, Failure, FrozenCell),
        *(Limits, Settlement, Request, Output),
    )
}


def _fields(value: Any) -> tuple[Any, ...]:
    return _FIELDS[type(value)](value)


def encode(message: Question | Answer, number: int) -> bytes:
    """A message as one frame."""
    # Source may hold lone surrogates; an answer never does.
    packer = msgpack.Packer(default=_fields, use_bin_type=True, unicode_errors="surrogatepass")
    body = packer.pack([message.kind, number, *_fields(message)]) or b""
    return HEADER.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """The length that a frame's header announces, if a frame may have it."""
    length = int(HEADER.unpack(header)[0])
    if length > MAX_FRAME:
        raise ProtocolError(f"frame of {length} bytes; at most {MAX_FRAME} are allowed")
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
        raise ProtocolError(f"frame is not msgpack: {type(error).__name__}") from None
    match message:
        case [str(), int(), *_]:
            return message
    raise ProtocolError("frame is not a list that starts with kind and number")


def decode_question(body: bytes) -> tuple[Question, int]:
    """Worker side: the parent is trusted, so fields are taken as they are."""
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
    """Parent side: anything but a well-formed answer to message `number` is a `ProtocolError`.

    Args:
        body: The frame without its length.
        number: What the answer must repeat.
        most: Items that a list in it may have.
    """
    kind, answered, *values = _unpack(body, most)
    if answered != number:
        raise ProtocolError(f"answer to message {answered}, expected one to {number}")
    try:
        return _ANSWERS[kind](values)
    except ProtocolError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"answer {kind!r} is malformed: {type(error).__name__}") from None


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _ready(values: list[Any]) -> Acknowledgement:
    image, notes = values
    return Acknowledgement(_typed(image, bytes), tuple(_typed(note, str) for note in notes))


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
    """A number that a guest's 32-bit word can hold: an address, a length, an id."""
    if not 0 <= _typed(value, int) < 1 << 32:
        raise ProtocolError(f"{value} does not fit a word")
    return int(value)


def _outputs(values: Iterable[Any]) -> tuple[Output, ...]:
    made = []
    for kind, body in values:
        if kind not in ("text", "json"):
            raise ProtocolError(f"unknown output type {kind!r}")
        made.append(Output(kind, _typed(body, bytes)))
    return tuple(made)


def _requests(values: Iterable[Any]) -> tuple[Request, ...]:
    made = []
    for number, method, args in values:
        if method not in METHODS:
            raise ProtocolError(f"unknown method {method!r}")
        made.append(Request(_word(number), method, _typed(args, bytes)))
    return tuple(made)


def _done(values: list[Any]) -> Completion:
    value, output = values
    return Completion(_typed(value, bytes), _outputs(output))


def _suspended(values: list[Any]) -> Suspension:
    requests, timers, due, output, frozen_at_most = values
    if not (math.isfinite(_typed(due, float)) and due >= 0 and _typed(timers, int) >= 0):
        raise ProtocolError(f"{timers} timers due at {due}")
    made = _requests(requests)
    return Suspension(made, timers, due, _outputs(output), _word(frozen_at_most))


def _failed(values: list[Any]) -> Failure:
    code, error, output, requests, crashed = values
    if code not in ERROR_CODES:
        raise ProtocolError(f"unknown error code {code!r}")
    emitted, made = _outputs(output), _requests(requests)
    return Failure(code, _typed(error, str), emitted, made, _typed(crashed, bool))


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
    # Most texts hold nothing suspicious. Only the others pay for the checks in Python.
    shape = text.translate(_SHAPES)
    decoder = _CAREFUL if any(each in shape for each in _SUSPICIOUS) else _QUICK
    try:
        value: JsonValue = decoder.decode(text.decode())
        if decoder is _CAREFUL:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"text that is not our JSON: {type(error).__name__}") from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _levels(value) > MAX_DEPTH:
        raise ProtocolError(f"a value of more than {MAX_DEPTH} levels")
    return value


# Not a regular expression: that takes twenty times as long, on the event loop.
_SHAPES = bytes.maketrans(b"123456789ED", b"000000000ed")
_SUSPICIOUS = (b"0" * 22, b"e000", b"e+000", b"\\ud")


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:30]} is not a number of JavaScript")


def _integer(text: str) -> int:
    # JavaScript writes larger numbers with an exponent.
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
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = inner
    return levels
