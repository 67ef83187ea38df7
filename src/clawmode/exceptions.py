"""The exceptions of the library, and the modules that define the others.

    ClawmodeError
    ├── SandboxError                 the host could not run a cell; carries an error code
    │   ├── RuntimeUnavailable       no wasm, altered wasm, no worker, worker died
    │   ├── DeadlineExceeded         the wall clock ran out, in the guest or in the queue
    │   ├── Aborted                  the run or the session was cancelled
    │   └── SnapshotError
    │       ├── SnapshotRefused      corrupt, truncated, tampered with or foreign: not restored
    │       │   ├── SnapshotKeyLost  sealed by a key that this process does not have
    │       │   └── SnapshotOfOtherBuild  parked by a build whose snapshots this one cannot read
    │       ├── SnapshotTooLarge     over the limits, checked before anything is restored
    │       └── StoreUnavailable     the store cannot be read or written
    │           └── AbortUnconfirmed the process that runs a cell has not confirmed its end
    ├── ProgramFailed                `result.unwrap()` of a program that failed
    ├── ProgramWaiting               `result.unwrap()` of a program that has not finished
    ├── UnexpectedValue              `result.value_as(T)` of a value that is not a `T`
    ├── NotOpen                      an object was used outside of its `async with`
    ├── ConfigurationError           a setting that cannot be used: nothing starts with it
    │   ├── DuplicateTool            two tools of one run have the same id
    │   ├── InvalidTool              no tool can be made of an object; a TypeError too
    │   └── UnknownHook              no event has that name; a ValueError too
    ├── ToolLookupError              a reference that matches no single tool; carries a code
    │   ├── UnknownTool              no visible tool has that id or name
    │   └── AmbiguousTool            several visible tools have that name
    ├── MissingExtra                 a package of an extra is missing; an ImportError too
    ├── UnsupportedPlatform          the operating system lacks what a part needs
    ├── InvalidSchema                a JSON Schema that no input can be checked against
    ├── ProtocolError                a frame that no honest peer sends
    ├── ToolProblem                  a core tool rejects a call; the message is for the caller
    ├── McpError                     `mcp/wire`: a call to an MCP server that has no result
    ├── ModelError                   `models/base`: a model did not answer a request
    ├── SessionError                 `sessions/keys`: an unknown session, or an invalid key
    ├── SessionBusy                  `sessions/lock`: another process writes to the session
    ├── TranscriptError              `sessions/history`: an entry cannot be recorded
    ├── ExportError                  `sessions/export`: a bundle cannot be written
    ├── PluginError                  `plugins/manifest`: a plugin cannot be used
    │   └── InstallRefused           `plugins/staging`: a plugin must not be installed
    ├── ChannelError                 `messaging/channel`: a message could not be sent
    ├── JobError                     `cron/jobs`: a cron job is unknown or invalid
    ├── RpcError                     `rpc/protocol`: a request is answered with an error
    ├── TokenError                   `rpc/tokens`: the gateway's tokens cannot be used
    ├── GatewayRuns                  `rpc/presence`: a gateway already runs in this state folder
    └── LedgerUnavailable            `gateway/ledger`: the gateway's ledger cannot be used

    ClawmodeWarning                  a `UserWarning`: a setting is not used as written
    ConfigWarning                    not an exception: the same, about a setting in a file

A guest's failure is data, not an exception: a `Failure` with a code. Only `unwrap` raises it. A
host failure is one of these exceptions, and becomes data at the edge of `code_mode`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from clawmode.types import ErrorCode, JsonValue, dataclass


class ClawmodeError(Exception):
    """The base class of all exceptions that this package raises on purpose."""


class SandboxError(ClawmodeError):
    """A cell could not continue, for a reason outside of its program."""

    code: ClassVar[ErrorCode] = "internal_error"


class RuntimeUnavailable(SandboxError):
    """No worker can run the cell. There is no fallback: a cell never runs outside of a sandbox."""

    code = "runtime_unavailable"


class DeadlineExceeded(SandboxError):
    """The wall-clock deadline of an `exec` or `wait` has passed."""

    code = "timeout"


class Aborted(SandboxError):
    """The cell was cancelled from outside."""

    code = "aborted"

    def __init__(self, message: str = "The program was aborted.") -> None:
        super().__init__(message)


class SnapshotError(SandboxError):
    """A frozen cell cannot be stored or restored."""

    code = "snapshot_restore_failed"


class SnapshotRefused(SnapshotError):
    """The snapshot is corrupt, tampered with, or belongs to another build or scope.

    Attributes:
        kept: True if the cell stays in the store, because another process can still resume it.
    """

    kept: ClassVar[bool] = False


class SnapshotKeyLost(SnapshotRefused):
    """This process lacks the key that sealed the snapshot. The key may return, so it is kept."""

    kept = True


class SnapshotOfOtherBuild(SnapshotRefused):
    """Another build of clawmode parked the cell and can still resume it, so it is kept."""

    kept = True


class StoreUnavailable(SnapshotError):
    """The snapshot store cannot be used: a full disk, a corrupt file or a held lock.

    Attributes:
        retry_after: Seconds after which another try may succeed; None if there is no telling.
        unsent: True if nothing has reached the store, so that certainly nothing has changed.
    """

    code = "runtime_unavailable"
    retry_after: float | None = None
    unsent = False


class AbortUnconfirmed(StoreUnavailable):
    """Another process was asked to end a cell and has not confirmed it. It ends it when it can."""


class SnapshotTooLarge(SnapshotError):
    """The snapshot is over the limits that are in force now."""

    code = "snapshot_limit_exceeded"


class ProgramFailed(ClawmodeError):
    """A program failed, and its caller asked for its value.

    Attributes:
        code: The error code.
        error: The reason, in words for people and models.
        calls: The calls that the program requested, and the state of each.
        output: The output that the program had emitted.
    """

    def __init__(
        self,
        code: ErrorCode,
        error: str,
        calls: Sequence[JsonValue] = (),
        output: Sequence[JsonValue] = (),
    ) -> None:
        super().__init__(code, error, calls, output)  # pickle passes these to `__init__` again
        self.code = code
        self.error = error
        self.calls = list(calls)
        self.output = list(output)

    def __str__(self) -> str:
        return f"{self.code}: {self.error}"


class ProgramWaiting(ClawmodeError):
    """A program has not finished, and its caller asked for its value.

    Attributes:
        run_id: The id to pass to `wait`.
        pending: The calls that the program waits for.
    """

    def __init__(self, run_id: str, pending: Sequence[JsonValue] = ()) -> None:
        super().__init__(run_id, pending)
        self.run_id = run_id
        self.pending = list(pending)

    def __str__(self) -> str:
        return (
            f"The program {self.run_id} has not finished: {len(self.pending)} of its calls are "
            "pending. Await code_mode.wait(result.run_id) until result.status is not 'waiting'."
        )


class UnexpectedValue(ClawmodeError, ValueError):
    """A program returned a value that does not have the type its caller expects."""


class NotOpen(ClawmodeError):
    """An object was used before it was entered with `async with`."""


class ClawmodeWarning(UserWarning):
    """A setting in the caller's Python code is not used as written."""


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A setting that has no effect, or not the effect that was written."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigurationError(ClawmodeError):
    """A setting cannot be used. Nothing falls back to a default: what needs it does not start.

    Attributes:
        path: The setting, such as `tools.codeMode.timeoutMs`; empty if no single setting is wrong.
        expected: A description of valid values, such as `a positive integer`.
        line: The line in the file, from 1; 0 if unknown.
        column: The column in the file, in characters from 1; 0 if unknown.
    """

    code: ClassVar[ErrorCode] = "invalid_config"

    def __init__(
        self, message: str, *, path: str = "", expected: str = "", line: int = 0, column: int = 0
    ) -> None:
        super().__init__(message)
        self.path = path
        self.expected = expected
        self.line = line
        self.column = column


class DuplicateTool(ConfigurationError):
    """Two tools of one run have the same id, so a call by that id would be ambiguous."""


class InvalidTool(ConfigurationError, TypeError):
    """No tool can be made of a function, or of the object that was given instead of one."""


class UnknownHook(ConfigurationError, ValueError):
    """A hook was registered for an event that does not exist."""


class ToolLookupError(ClawmodeError):
    """A reference matches no tool, or several.

    Attributes:
        ids: The ids of tools that the caller may have meant.
    """

    code: ClassVar[str] = "unknown_tool"

    def __init__(self, message: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids


class UnknownTool(ToolLookupError):
    """No visible tool has that id or name."""


class AmbiguousTool(ToolLookupError):
    """Several visible tools have that name."""

    code = "ambiguous_tool"


EXTRAS: dict[str, frozenset[str]] = {
    "agent": frozenset(
        ("anthropic", "cronsim", "httpx2", "openai", "pydantic_ai", "pyjson5", "tiktoken", "yaml")
    ),
    "cli": frozenset(("cronsim", "prompt_toolkit", "pyjson5", "rich", "typer", "yaml")),
    "mcp": frozenset(("httpx2", "jwt", "mcp", "mcp_types", "pyjson5", "starlette", "uvicorn")),
    "postgres": frozenset(("psycopg",)),
    "search": frozenset(("numpy",)),
}
"""The libraries that each extra installs, by the name under which they are imported."""
EXTRAS["acp"] = EXTRAS["agent"].union(EXTRAS["cli"], EXTRAS["mcp"], ("acp",))
EXTRAS["gateway"] = EXTRAS["agent"].union(
    EXTRAS["cli"], EXTRAS["mcp"], ("standardwebhooks", "websockets")
)


class MissingExtra(ClawmodeError, ImportError):
    """A package is missing that an extra of clawmode installs.

    Attributes:
        extra: The name of the extra.
    """

    def __init__(self, extra: str, library: str) -> None:
        super().__init__(extra, library)
        self.name = library
        self.extra = extra

    def __str__(self) -> str:
        return f'{self.name} is not installed: pip install "clawmode[{self.extra}]"'

    @classmethod
    def cause_of(cls, error: ImportError) -> "MissingExtra | None":
        """Returns the extra whose absence explains a failed import; None if no extra does.

        Several extras have libraries in common. The modules on the way to the import tell which of
        them the caller wants: `clawmode.commands.gateway` wants the extra `gateway`.
        """
        library, _, inner = (error.name or "").partition(".")
        fitting = [extra for extra, libraries in EXTRAS.items() if library in libraries]
        # If the library was imported and only lacks a module, it has a wrong version.
        if not fitting or (inner and sys.modules.get(library) is not None):
            return None
        frame = error.__traceback__
        while frame is not None:
            module = str(frame.tb_frame.f_globals.get("__name__", "")).split(".")
            if module[0] == "clawmode" and (named := {*module} & {*fitting}):
                return cls(named.pop(), library)
            frame = frame.tb_next
        return cls(fitting[0], library)


def require(library: str, extra: str) -> None:
    """Checks, without importing it, that a library of an extra is installed.

    Raises:
        MissingExtra: It is not.
    """
    from importlib.util import find_spec  # not at the start of a worker

    if find_spec(library) is None:
        raise MissingExtra(extra, library)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turns failed imports of the block into `MissingExtra` where an extra has the library.

    Raises:
        MissingExtra: A library is missing that an extra installs.
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtra) or (missing := MissingExtra.cause_of(error)) is None:
            raise
        raise missing from None


class UnsupportedPlatform(ClawmodeError):
    """The operating system lacks what a part of clawmode needs. Other parts can be used."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"{part} cannot be used on {sys.platform}: use Linux or macOS; on Windows, use WSL."
        )


class InvalidSchema(ClawmodeError):
    """A tool's JSON Schema is invalid, or checking input against it could take too long."""


class ProtocolError(ClawmodeError):
    """A peer sent an invalid frame. The peer is no longer trusted."""

    def __init__(self, message: str) -> None:
        # The message is logged and quotes data of the peer, which can be megabytes long.
        super().__init__(message[:300])


class ToolProblem(ClawmodeError):
    """A core tool rejects a call. The message is for the caller, and says what to do.

    Attributes:
        code: The kind of problem, such as `outside` or `not_found`; for tests and logs.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def message_of(error: BaseException) -> str:
    """Returns the exception's message, or its class name if the message is empty or raises."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # `__str__` of foreign code
        return type(error).__name__
