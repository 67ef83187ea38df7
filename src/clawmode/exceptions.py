"""Every exception and error code of the library, and where the others are.

    ClawmodeError
    ├── SandboxError                 host trouble while a cell runs; carries an error code
    │   ├── RuntimeUnavailable       no wasm, altered wasm, no worker, worker died
    │   ├── DeadlineExceeded         the wall clock ran out, in the guest or in the queue
    │   ├── Aborted                  the run or the session was cancelled
    │   └── SnapshotError
    │       ├── SnapshotRefused      corrupt, truncated, tampered, foreign: not restored
    │       │   ├── SnapshotKeyLost  sealed by a key that is not known here
    │       │   └── SnapshotOfOtherBuild  parked by a build whose snapshots this one cannot read
    │       ├── SnapshotTooLarge     over the limits, before anything was restored
    │       └── StoreUnavailable     the store cannot be read or written
    │           └── AbortUnconfirmed the process that runs a cell has not said that it ended it
    ├── ProgramFailed                `result.unwrap()` of a program that failed
    ├── ProgramWaiting               `result.unwrap()` of a program that is not done
    ├── UnexpectedValue              `result.value_as(T)` of a value that is no `T`
    ├── NotOpen                      an object was used outside of its `async with`
    ├── ConfigurationError           a setting that cannot be meant: nothing starts with it
    │   ├── DuplicateTool            two tools of one run with one id
    │   ├── InvalidTool              what no tool can be made of; a TypeError too
    │   └── UnknownHook              no event has that name; a ValueError too
    ├── ToolLookupError              a reference that leads to no tool; carries a code for the guest
    │   ├── UnknownTool              no visible tool has that id or name
    │   └── AmbiguousTool            several have that name
    ├── InvalidSchema                a JSON Schema that no input can be checked against
    ├── ProtocolError                a frame that no honest peer sends
    ├── McpError                     `mcp/link`: a call to an MCP server that has no result
    ├── ModelError                   `models/base`: a request that a model did not answer
    ├── RunFailed                    `agent/requests`: a run of an `Agent` that did not end well
    ├── SessionError                 `agent/session_keys`: no such session, or none can be called so
    ├── SessionBusy                  `agent/session_lock`: somebody else writes to it
    ├── TranscriptError              `agent/history`: something cannot be written down
    ├── PluginError, InstallRefused  `plugins/`: a plugin that cannot be used, or must not come in
    ├── ChannelError                 `channels/base`: a message that could not be sent
    ├── JobError                     `cron/jobs`: a job that cannot be had
    ├── RpcError                     `gateway/protocol`: a request that is answered with an error
    ├── TokenError, LedgerUnavailable, GatewayRuns   `gateway/`: it cannot let in, remember, start
    └── ExportError                  `agent/trajectory_export`: a bundle cannot be written

    ClawmodeWarning                  a `UserWarning`: a setting is not used as it stands

Guest failure is never an exception, unless the caller asks for one (`unwrap`): it is a `Failure`
outcome with a code. Host trouble is one of these, and becomes data at the edge of `code_mode`.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from clawmode.types import JsonValue

ErrorCode: TypeAlias = Literal[
    "runtime_unavailable",
    "invalid_config",
    "invalid_input",
    "unsupported_language",
    "typescript_transform_failed",
    "module_access_denied",
    "timeout",
    "memory_limit_exceeded",
    "output_limit_exceeded",
    "snapshot_limit_exceeded",
    "snapshot_expired",
    "snapshot_restore_failed",
    "too_many_pending_tool_calls",
    "nested_tool_failed",
    "aborted",
    "internal_error",
]

ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)


class ClawmodeError(Exception):
    """The root of all exceptions that this package raises on purpose."""


class SandboxError(ClawmodeError):
    """A cell could not go on for a reason that lies outside of it."""

    code: ClassVar[ErrorCode] = "internal_error"


class RuntimeUnavailable(SandboxError):
    """There is nothing to run the cell in: fail closed."""

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
        kept: The cell stays in the store: somebody else, or somebody later, can resume it.
    """

    kept: ClassVar[bool] = False


class SnapshotKeyLost(SnapshotRefused):
    """The key that sealed it is not known here. It may come back, so the snapshot is kept."""

    kept = True


class SnapshotOfOtherBuild(SnapshotRefused):
    """Another build of clawmode parked it, and can still resume it, so the snapshot is kept."""

    kept = True


class StoreUnavailable(SnapshotError):
    """The store of snapshots cannot be used: its disk is full, its file corrupt, its lock held."""

    code = "internal_error"


class AbortUnconfirmed(StoreUnavailable):
    """Another process was asked to end a cell and has not confirmed it; it ends it when it can."""


class SnapshotTooLarge(SnapshotError):
    """The snapshot is over the limits in force now."""

    code = "snapshot_limit_exceeded"


class ProgramFailed(ClawmodeError):
    """A program failed, and its caller asked for its value.

    Attributes:
        code: Why, for code.
        error: Why, for people and models.
        calls: The calls that the program had asked for, and what became of each.
        output: What the program had emitted.
    """

    def __init__(
        self,
        code: ErrorCode,
        error: str,
        calls: Sequence[JsonValue] = (),
        output: Sequence[JsonValue] = (),
    ) -> None:
        super().__init__(code, error, calls, output)  # so that it can be pickled
        self.code = code
        self.error = error
        self.calls = list(calls)
        self.output = list(output)

    def __str__(self) -> str:
        return f"{self.code}: {self.error}"


class ProgramWaiting(ClawmodeError):
    """A program is not done, and its caller asked for its value.

    Attributes:
        run_id: What `wait` takes.
        pending: The calls that the program waits for.
    """

    def __init__(self, run_id: str, pending: Sequence[JsonValue] = ()) -> None:
        super().__init__(run_id, pending)
        self.run_id = run_id
        self.pending = list(pending)

    def __str__(self) -> str:
        return (
            f"The program {self.run_id} is not done, it waits for {len(self.pending)} of its "
            "calls: await code_mode.wait(result.run_id) until result.status is not 'waiting'."
        )


class UnexpectedValue(ClawmodeError, ValueError):
    """A program returned a value that is not of the type that its caller expects."""


class NotOpen(ClawmodeError):
    """An object was used before it was entered with `async with`."""


class ClawmodeWarning(UserWarning):
    """A setting in a program's own code is not used as it stands."""


class ConfigurationError(ClawmodeError):
    """What was configured cannot be used: fail closed.

    Attributes:
        path: The setting, such as `tools.codeMode.timeoutMs`; empty if it is about no single one.
        expected: What would have been right, such as `a positive integer`.
        line: Where in the file it is, from 1; 0 if unknown.
        column: The same, in characters.
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
    """Two tools of one run have the same id: neither could be called without doubt."""


class InvalidTool(ConfigurationError, TypeError):
    """No tool can be made of a function, or of what was given in its place."""


class UnknownHook(ConfigurationError, ValueError):
    """A hook was registered for an event that does not exist."""


class ToolLookupError(ClawmodeError):
    """A reference to a tool leads to none, or to several.

    Attributes:
        ids: What may have been meant.
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


class InvalidSchema(ClawmodeError):
    """The JSON Schema of a tool is wrong, or too costly to check input against."""


class ProtocolError(ClawmodeError):
    """A peer sent a frame that cannot be one: its sender is not to be trusted any further."""

    def __init__(self, message: str) -> None:
        # It is logged, and quotes what was sent.
        super().__init__(message[:300])


class ToolProblem(ClawmodeError):
    """A call that cannot be served. Its message is for the caller, and says what to do.

    Attributes:
        code: What kind of trouble it is, such as `outside` or `not_found`; for tests and logs.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
