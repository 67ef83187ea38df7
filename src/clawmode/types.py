"""JSON types that every folder shares."""

from typing import Any, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""A parsed JSON value, as it crosses the bridge between guest and host."""

JsonObject: TypeAlias = dict[str, JsonValue]

JsonText: TypeAlias = bytes
"""UTF-8 JSON that has not been parsed. The sandbox passes such text on without reading it."""


def copy_json(value: Any) -> Any:
    """Returns a deep copy of a JSON value, several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value
