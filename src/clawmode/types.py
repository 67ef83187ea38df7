"""The few type aliases that everyone shares."""

from typing import TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""What crosses the bridge, once parsed."""

JsonText: TypeAlias = bytes
"""UTF-8 JSON that has not been parsed: what the sandbox carries, without looking inside."""
