"""The lines of a transcript as records: encoded to JSON, parsed, and checked.

`docs/reference/transcript.md` describes the format.
"""

import json
from dataclasses import field
from typing import ClassVar

from clawmode.exceptions import ClawmodeError
from clawmode.messages import Message, from_json, to_json
from clawmode.records import CAMEL, Number, adapter
from clawmode.types import JsonObject, JsonValue, dataclass, refuse_constant

VERSION = 1

_HEAD = ("type", "id", "runId", "at")


class TranscriptError(ClawmodeError):
    """A transcript cannot be read or written; nothing was written."""

    code: ClassVar[str] = "session_unavailable"


class TranscriptRefused(TranscriptError):
    """The file has another version, or belongs to another session. It is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a transcript: which session it belongs to.

    Attributes:
        workspace: The workspace of the session's runs; empty if there is none.
    """

    __pydantic_config__ = CAMEL

    id: str
    key: str
    agent_id: str
    created_at: Number
    workspace: str = ""

    def to_json(self) -> JsonObject:
        return {
            "type": "session",
            "version": VERSION,
            **adapter(Header).dump_python(self, by_alias=True),
        }

    @classmethod
    def parse(cls, value: JsonObject, name: str) -> "Header":
        """Parses the first line of the transcript `name`.

        Raises:
            TranscriptRefused: The transcript has another version.
            ValueError: A member is missing or has the wrong type.
        """
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            raise TranscriptRefused(
                f"The transcript {name} has version {str(version)[:40]}, and this clawmode knows "
                f"{VERSION}. Nothing was changed; a newer clawmode may read it."
            )
        return adapter(Header).validate_python(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line after the first.

    Attributes:
        type: `run`, `message`, `nested`, `compaction`, `custom`, or a type of a later release.
        data: The rest of the line; empty for a message.
        message: The message of a line of the type `message`.
    """

    type: str
    id: str
    run_id: str
    at: float
    data: JsonObject = field(default_factory=dict[str, JsonValue])
    message: Message | None = None

    def to_json(self) -> JsonObject:
        head: JsonObject = {"type": self.type, "id": self.id, "runId": self.run_id, "at": self.at}
        if self.message is not None:
            return {**head, "message": to_json(self.message)}
        return {**head, **self.data}

    @classmethod
    def parse(cls, value: JsonObject) -> "Entry":
        """Parses a line after the first; consumes `value`.

        Raises:
            ValueError, OverflowError, RecursionError: A member is missing or invalid.
        """
        head = adapter(_Head).validator.validate_python(value)
        if head.type == "message":
            message = from_json(value.get("message"))
            return cls(type="message", id=head.id, run_id=head.run_id, at=head.at, message=message)
        for key in _HEAD:
            value.pop(key, None)
        return cls(type=head.type, id=head.id, run_id=head.run_id, at=head.at, data=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The members that every line after the first has."""

    __pydantic_config__ = CAMEL

    type: str
    id: str
    run_id: str = ""
    at: Number


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call that a program made.

    Attributes:
        parent_id: The `exec` call that the call is nested in.
        state: The state that was recorded last: `started` if no end was recorded.
    """

    run_id: str
    parent_id: str
    call_id: str
    tool_id: str
    state: str
    ms: int = 0
    code: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> "NestedCall":
        """Reads an entry of the type `nested`. A missing or invalid member gets a default."""
        data = entry.data
        ms, code = data.get("ms"), data.get("code")
        return cls(
            run_id=entry.run_id,
            parent_id=str(data.get("parentId", "")),
            call_id=str(data.get("callId", "")),
            tool_id=str(data.get("toolId", "")),
            state=str(data.get("state", "")),
            ms=ms if isinstance(ms, int) else 0,
            code=code if isinstance(code, str) else None,
        )

    def to_json(self) -> JsonObject:
        """Returns the call as an exported bundle contains it."""
        made: JsonObject = {
            "callId": self.call_id,
            "parentId": self.parent_id,
            "toolId": self.tool_id,
            "state": self.state,
        }
        if self.state != "started":
            made["ms"] = self.ms
        return made if self.code is None else {**made, "code": self.code}


# ---- Parsing ----


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def decode(line: bytes) -> JsonValue:
    """Decodes a line as JSON.

    Not with the parser of pydantic: that one rejects half of a surrogate pair and 200 levels of
    nesting, both of which transcripts contain, and accepts NaN.

    Raises:
        ValueError, RecursionError: The line is not one JSON value, or is nested too deeply.
    """
    # The same as `JSONDecoder.decode`, without its two regular expressions for each line.
    text = line.decode().strip(" \t\r\n")
    value, end = _DECODER.raw_decode(text)
    if end < len(text):
        raise ValueError("there is text after the JSON object")
    return value
