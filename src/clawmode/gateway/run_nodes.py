"""A node of the tree of what runs now: a turn, a program or a call, as clients see it."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, TypeAlias

from clawmode.redaction import Redactor
from clawmode.text import plain_line, shorten
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_TITLE, MAX_PREVIEW, MAX_NODE_ID = 120, 200, 160
CODE_READ = 2_000
"""Characters of a text that are redacted for its preview, which is much shorter.

`shorten` marks the cut, so that the half of a secret before it is redacted too."""

Hide: TypeAlias = Callable[[str], str]
"""Redacts known secrets. Before a text is cut: nobody recognizes the half of a secret."""

Kind: TypeAlias = Literal["turn", "program", "call"]
State: TypeAlias = Literal[
    "queued", "running", "waiting", "parked", "completed", "failed", "cancelled"
]
OVER: tuple[State, ...] = ("completed", "failed", "cancelled")

TURN_STATES: dict[str, State] = {"ok": "completed", "aborted": "cancelled"}
CALL_STATES: dict[Any, State] = {"completed": "completed", "cancelled": "cancelled"}

# A program may pass on what it has never shown to the model, such as a password.
_redactor = Redactor()


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """A turn, a program or a call.

    Attributes:
        number: Grows from node to node. The number of a parent is smaller than its children's.
        waits_for: What a waiting node waits for.
        until: When the waiting ends by itself, by `time.time`; 0 if that is not known.
        expires: When a parked program is deleted.
        question: The id of the question that a person has to answer.
        cell_id: The id of a program, once it is known.
        queued: The calls of a program that wait for its other calls.
        left_out: The calls of a program that were left out because there are too many nodes.
        code: The code of an error.
    """

    number: int
    id: str
    parent: str | None
    kind: Kind
    title: str
    run_id: str
    session_key: str
    agent_id: str = ""
    state: State = "running"
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    tool_id: str = ""
    preview: str = ""
    waits_for: str = ""
    until: float = 0.0
    expires: float = 0.0
    question: str = ""
    cell_id: str = ""
    queued: int = 0
    left_out: int = 0
    code: str = ""

    def to_json(self) -> JsonObject:
        """Returns the node as clients see it, without the members that are empty."""
        known: JsonObject = {
            "agentId": self.agent_id,
            "endedAt": _ms(self.ended),
            "durationMs": round((self.ended - self.started) * 1000) if self.ended else None,
            "toolId": self.tool_id,
            "inputPreview": self.preview,
            "waitsFor": self.waits_for,
            "until": _ms(self.until),
            "expiresAt": _ms(self.expires),
            "questionId": self.question,
            "cellId": self.cell_id,
            "queued": self.queued,
            "leftOut": self.left_out,
            "code": self.code,
        }
        return {
            "id": self.id,
            "parent": self.parent,
            "kind": self.kind,
            "title": self.title,
            "state": self.state,
            "startedAt": _ms(self.started),
            "sessionKey": self.session_key,
            "runId": self.run_id,
        } | {key: value for key, value in known.items() if value not in (None, "", 0)}

    def wait(self, what: str, until: float = 0.0, question: str = "") -> None:
        """Sets what the node waits for; empty if it waits for nothing."""
        self.waits_for, self.until, self.question = what, until, question


def _ms(seconds: float) -> int | None:
    return int(seconds * 1000) if seconds else None


def node_id_of(run_id: str, call_id: str) -> str:
    """Returns the id of the node of a call. Models choose the ids of their calls, of any length."""
    if len(call_id) > MAX_NODE_ID:
        call_id = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()
    return f"{run_id}/{call_id}"


def title_of(text: str, hide: Hide = str) -> str:
    """Returns a text on one line, redacted and shortened."""
    return plain_line(_redactor.text(hide(shorten(text, CODE_READ))), MAX_TITLE)


def preview_of(value: JsonValue, hide: Hide = str) -> str:
    """Returns an input on one line, redacted and shortened."""
    if isinstance(value, str):
        return plain_line(_redactor.text(hide(shorten(value, CODE_READ))), MAX_PREVIEW)
    shown = _redactor.clip(value, CODE_READ)
    return plain_line(hide(json.dumps(shown, ensure_ascii=False)), MAX_PREVIEW)
