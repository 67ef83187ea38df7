"""Both sides: the messages between parent and worker, as data.

The parent sends one message and the worker answers it with one message; neither sends anything in
between. JSON of the guest (values, arguments, output) travels as text, which only the parent
parses. `frames` encodes and decodes the messages.
"""

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, get_args

from clawmode.types import ErrorCode, JsonText, JsonValue

Language: TypeAlias = Literal["javascript", "typescript"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Method: TypeAlias = Literal["call", "search", "describe", "namespace", "api", "yield"]
METHODS: tuple[Method, ...] = get_args(Method)
Part: TypeAlias = Literal["quickjs", "swc", "acorn"]

MAX_SOURCE = 1 << 20
MAX_REQUEST = 1 << 20
MAX_REPLY = 8 << 20
MAX_ERROR = 64 << 10
MAX_SETUPS = 16
ITEM_BYTES = {"text": 24, "json": 25}
"""Bytes that an item of output takes in a result besides its body: braces, keys, the comma."""

PAGE = 4096

_LOCAL = {"local": True}
"""Metadata of a field that is not part of the frame."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one cell may use, after clamping to the allowed ranges."""

    memory_bytes: int = 64 << 20
    max_calls: int = 16 + 128
    max_others: int = 1024
    snapshot_bytes: int = 10 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the guest to the host. It stays open until a `Settlement` has its id."""

    id: int
    method: Method
    args: JsonText


@dataclass(frozen=True, slots=True)
class Settlement:
    """The host's reply to a request: a value, or an error as `{name, message, code, toolId}`."""

    id: int
    ok: bool
    value: JsonText


@dataclass(frozen=True, slots=True)
class Output:
    """One item of output; `body` is the JSON of a string or of a value.

    `parsed` is the value of `body`. Only the parent sets it; it is not part of the frame.
    """

    type: Literal["text", "json"]
    body: JsonText
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)

    @property
    def size(self) -> int:
        """Bytes that the item takes of the output budget."""
        return len(self.body) + ITEM_BYTES[self.type]


@dataclass(frozen=True, slots=True)
class FrozenCell:
    """A cell's memory as its difference from the image; `pages` are zstd-compressed.

    `heap` is the size of the cell's heap when it started: its catalog and namespaces.
    """

    kind: ClassVar[str] = "frozen"
    image: bytes
    memory: int
    pointers: tuple[int, int, int]
    pages: bytes
    heap: int = 0


@dataclass(frozen=True, slots=True)
class Boot:
    """The first message to a worker: the machine code of QuickJS."""

    kind: ClassVar[str] = "boot"
    quickjs: bytes


@dataclass(frozen=True, slots=True)
class Provide:
    """Gives the worker a part that the next cell needs: the TypeScript transformer or acorn."""

    kind: ClassVar[str] = "provide"
    part: Part
    data: bytes


@dataclass(frozen=True, slots=True)
class Install:
    """Builds the image that a run's cells start from: the catalog and namespaces in `data`.

    A worker keeps the last `MAX_SETUPS` images, in the order of their arrival.
    """

    kind: ClassVar[str] = "install"
    key: bytes
    data: JsonText


@dataclass(frozen=True, slots=True)
class Start:
    """Runs a new cell until it is idle. `setup` is the key of the `Install` it starts from."""

    kind: ClassVar[str] = "start"
    source: str
    language: Language = "javascript"
    limits: Limits = Limits()
    output_left: int = 65536
    budget: float = 10.0
    setup: bytes = b""

    def needs(self) -> tuple[Part, ...]:
        """Returns the parts that the worker needs to prepare this source."""
        parts: list[Part] = []
        if self.language == "typescript":
            parts.append("swc")
        # Few sources can reach a module at all, and only these are worth parsing with acorn.
        source = _ESCAPE.sub(_unescape, self.source) if "\\u" in self.source else self.source
        if "import" in source or "require" in source:
            parts.append("acorn")
        return tuple(parts)


_ESCAPE = re.compile(r"\\u(?:\{([0-9a-fA-F]+)\}|([0-9a-fA-F]{4}))")


def _unescape(escape: re.Match[str]) -> str:
    return chr(min(int(escape[1] or escape[2], 16), 0x10FFFF))


@dataclass(frozen=True, slots=True)
class Resume:
    """Resumes a cell: the warm one, or the one in `frozen`."""

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
    """The worker has done what it was asked; `image` is the hash of the memory cells start from."""

    kind: ClassVar[str] = "ready"
    image: bytes = b""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The cell has finished, nothing is pending. `parsed` is the value of `value`; see `Output`."""

    kind: ClassVar[str] = "done"
    value: JsonText
    output: tuple[Output, ...] = ()
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)


@dataclass(frozen=True, slots=True)
class Suspension:
    """The cell is idle and warm: it waits for requests, or for a timer that is due at `due`.

    `timers` counts timeouts. If there are none, an interval counts while the main promise is
    pending. `frozen_at_most` is an upper bound of the cell's size when frozen, in bytes.
    """

    kind: ClassVar[str] = "suspended"
    requests: tuple[Request, ...] = ()
    timers: int = 0
    due: float = 0.0
    output: tuple[Output, ...] = ()
    frozen_at_most: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The cell has failed and is gone. `requests` are its last ones and must not be dispatched.

    `crashed` is true if the guest broke the sandbox's own code: the worker must be replaced.
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
