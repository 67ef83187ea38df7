"""The few type aliases that everyone shares."""

from typing import Any, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""What crosses the bridge, once parsed."""

JsonObject: TypeAlias = dict[str, JsonValue]

JsonText: TypeAlias = bytes
"""UTF-8 JSON that has not been parsed: what the sandbox carries, without looking inside."""


def copy_json(value: Any) -> Any:
    """A copy that shares nothing that can be changed."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value
