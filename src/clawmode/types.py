"""JSON types and error codes that every folder shares."""

from typing import Any, Literal, TypeAlias, get_args

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""A parsed JSON value, as it crosses the bridge between guest and host."""

JsonObject: TypeAlias = dict[str, JsonValue]

JsonText: TypeAlias = bytes
"""UTF-8 JSON that has not been parsed. The sandbox passes such text on without reading it."""

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

CallState: TypeAlias = Literal[
    "queued", "running", "approval", "completed", "failed", "cancelled", "unknown", "not_started"
]
"""The state of a nested call. A call in one of the first three states has no reply yet."""

CALL_STATES: tuple[CallState, ...] = get_args(CallState)
OPEN_STATES: tuple[CallState, ...] = ("queued", "running", "approval")


def copy_json(value: Any) -> Any:
    """Returns a deep copy of a JSON value, several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value
