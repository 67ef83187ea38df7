"""Both sides: the messages between parent and worker, as data.

The parent sends one message and the worker answers it with one message; neither sends anything in
between. JSON of the guest (values, arguments, output) travels as text, which only the parent
parses. `frames` encodes and decodes the messages.
"""

import re
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

from clawmode.types import ErrorCode, JsonText, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.sandbox.lockdown import Mode

Language: TypeAlias = Literal["javascript", "typescript"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Method: TypeAlias = Literal["call", "search", "describe", "namespace", "api", "yield", "notify"]
METHODS: tuple[Method, ...] = get_args(Method)
Part: TypeAlias = Literal["quickjs", "swc", "acorn"]

MAX_SOURCE = 1 << 20
MAX_REQUEST = 1 << 20
MAX_REPLY = 8 << 20
MAX_ERROR = 64 << 10
MAX_SETUPS = 16
MAX_STATE_KEYS = 200
MAX_STATE_NAME = 200
MAX_STATE_VALUE = 1 << 20
MAX_STATE_BYTES = 4 << 20
ITEM_BYTES = {"text": 24, "json": 25}
"""Bytes that an item of output takes in a result besides its body: braces, keys, the comma."""

PAGE = 4096

State: TypeAlias = tuple[tuple[str, JsonText], ...]
"""What programs have stored for each other: JSON by key."""

Stored: TypeAlias = tuple[tuple[str, JsonText | None], ...]
"""What a step has stored: JSON by key, or None for a deleted key."""

_LOCAL = {"local": True}
"""Metadata of a field that is not part of the frame."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one cell may use, after clamping to the allowed ranges.

    The host gets at most `max_calls` calls and `max_others` other requests at once. `max_waiting`
    further calls, and any number of other requests, wait in the heap of the cell.
    """

    memory_bytes: int = 64 << 20
    max_calls: int = 16 + 128
    max_others: int = 1024
    snapshot_bytes: int = 10 << 20
    max_waiting: int = 0


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
    """One item of output; `body` is the JSON of a string or of a value, or an image in base64.

    `parsed` is the value of `body`. Only the parent sets it; it is not part of the frame.
    """

    type: Literal["text", "json", "image"]
    body: JsonText
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)

    @property
    def size(self) -> int:
        """Bytes that the item takes of the output budget, which images do not share."""
        return 0 if self.type == "image" else len(self.body) + ITEM_BYTES[self.type]


@dataclass(frozen=True, slots=True)
class FrozenCell:
    """A cell's memory as its difference from the image; `pages` may be compressed (`packing`).

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
    """The first message to a worker: the machine code of QuickJS, and the image if it is cached."""

    kind: ClassVar[str] = "boot"
    quickjs: bytes
    image: bytes = b""


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks the template for a worker. The answer is its pid, together with a pidfd of it."""

    kind: ClassVar[str] = "fork"
    lockdown: "Mode"


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


@dataclass(slots=True)
class Start:
    """Runs a new cell until it is idle. `setup` is the key of the `Install` it starts from.

    `state` is what programs have stored; None if the source does not name it.
    """

    kind: ClassVar[str] = "start"
    source: str
    language: Language = "javascript"
    limits: Limits = Limits()
    output_left: int = 65536
    budget: float = 10.0
    setup: bytes = b""
    state: State | None = None

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


@dataclass(slots=True)
class Resume:
    """Resumes a cell: the warm one, or the one in `frozen`. `state` is None if it is unchanged.

    The pool fills in `frozen`, `budget` and `state`. `now` is a lower bound of the guest's time: a
    cell that is resumed for a timer must find it due. `shift` is how far the guest's clock is ahead
    of this machine's, in milliseconds.
    """

    kind: ClassVar[str] = "resume"
    settled: tuple[Settlement, ...] = ()
    frozen: FrozenCell | None = None
    limits: Limits = Limits()
    output_left: int = 65536
    budget: float = 10.0
    now: float = 0.0
    state: State | None = None
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Freeze:
    """Asks for the warm cell's memory. The worker holds no cell afterwards, unless `keep`.

    `packed` is false if the cell stays in the parent, so that compressing it is not worth its time.
    """

    kind: ClassVar[str] = "freeze"
    packed: bool = True
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The worker has done what it was asked; `image` is the hash of the memory cells start from.

    `built` is that memory, for the cache, if `Boot` had none.
    """

    kind: ClassVar[str] = "ready"
    image: bytes = b""
    notes: tuple[str, ...] = ()
    built: bytes = b""


@dataclass(frozen=True, slots=True)
class Completion:
    """The cell has finished, nothing is pending. `parsed` is the value of `value`; see `Output`.

    `unmade` counts calls that the cell had opened in this step when it called `exit`.
    """

    kind: ClassVar[str] = "done"
    value: JsonText
    output: tuple[Output, ...] = ()
    stored: Stored = ()
    unmade: int = 0
    parsed: JsonValue = field(default=None, compare=False, metadata=_LOCAL)


@dataclass(frozen=True, slots=True)
class Suspension:
    """The cell is idle and warm: it waits for requests, or for a timer that is due at `due`.

    `timers` counts timeouts. If there are none, an interval counts while the main promise is
    pending. `frozen_at_most` is an upper bound of the cell's size when frozen, in bytes. `waiting`
    counts calls that wait in the cell's heap until the host has replied to others.
    """

    kind: ClassVar[str] = "suspended"
    requests: tuple[Request, ...] = ()
    timers: int = 0
    due: float = 0.0
    output: tuple[Output, ...] = ()
    frozen_at_most: int = 0
    waiting: int = 0
    stored: Stored = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The cell has failed and is gone. `requests` are its last ones and must not be dispatched.

    `waiting` counts the calls that it would have made after these.
    `crashed` is true if the guest broke the sandbox's own code: the worker must be replaced.
    """

    kind: ClassVar[str] = "failed"
    code: ErrorCode
    error: str
    output: tuple[Output, ...] = ()
    requests: tuple[Request, ...] = ()
    crashed: bool = False
    waiting: int = 0
    stored: Stored = ()


Question: TypeAlias = Boot | Fork | Provide | Install | Start | Resume | Freeze
Outcome: TypeAlias = Completion | Suspension | Failure
Answer: TypeAlias = Acknowledgement | Completion | Suspension | Failure | FrozenCell
