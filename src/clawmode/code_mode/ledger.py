"""The ledger of a cell: what became of each call, for results that say what was done already."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import field

from clawmode.redaction import Redactor, before_clip
from clawmode.tools.tool import Effect, Tool
from clawmode.types import OPEN_STATES, CallState, JsonObject, JsonValue, dataclass

MAX_LEDGER = 100

MAX_INPUT, MAX_INPUTS = 300, 4_000
"""Characters of a call's input in a result, and of the inputs of all calls."""


@dataclass(slots=True)
class Entry:
    """The state of one call in the ledger.

    Attributes:
        input: The input of the call, shortened.
    """

    id: int
    tool_id: str
    effect: Effect | None
    state: CallState = "queued"
    input: JsonValue = None

    def to_json(self) -> JsonObject:
        """Returns the row of `calls` in a failed result, without the input."""
        row: JsonObject = {"id": str(self.id), "toolId": self.tool_id, "state": self.state}
        return row | {"effect": self.effect} if self.effect is not None else row

    def keep_input(self, given: JsonObject, size: int) -> None:
        """Keeps the input of the call, shortened if its JSON of `size` bytes is too long."""
        self.input = given if size <= MAX_INPUT else before_clip(given, MAX_INPUT)


# A program may pass on what it has never shown to the model, such as a password.
_redactor = Redactor()


def add_inputs(rows: Iterable[tuple[JsonObject, JsonValue]]) -> list[JsonValue]:
    """Returns rows with the inputs of their calls, redacted, until there is no room for more."""
    made, left = list[JsonValue](), MAX_INPUTS
    for row, given in rows:
        if given and left > 0:
            is_long = len(json.dumps(given, ensure_ascii=False, separators=(",", ":"))) > MAX_INPUT
            shown = _redactor.clip(given, MAX_INPUT) if is_long else _redactor.value(given)
            left -= len(json.dumps(shown, ensure_ascii=False))
            if left >= 0:
                row["input"] = shown
        made.append(row)
    return made


@dataclass(slots=True)
class Ledger:
    """The calls of a cell in order of their start: a failed result shows what was done already.

    Beyond `MAX_LEDGER` entries, calls are only counted: those that have not started, then the
    oldest ones that have ended.
    """

    entries: list[Entry] = field(default_factory=list[Entry])
    omitted: Counter[str] = field(default_factory=Counter[str])

    def add(self, call_id: int, tool: Tool, state: CallState = "queued") -> Entry:
        """Adds the entry of a new call, and returns it."""
        return self.note(Entry(call_id, tool.id, tool.effect, state))

    def to_json(self) -> list[JsonValue]:
        """Returns the `calls` of a failed result, with the inputs of calls that may have effects.

        The newest inputs are shown first: these calls are the ones that a model may repeat.
        """
        newest = reversed(self.entries)
        shown = ((each.to_json(), each.input if each.effect != "read" else None) for each in newest)
        return add_inputs(shown)[::-1]

    def note(self, entry: Entry) -> Entry:
        """Adds an entry, and drops the one that says least if there are too many."""
        self.entries.append(entry)
        if len(self.entries) > MAX_LEDGER:
            states = [old.state for old in self.entries]
            ended = (state for state in states if state not in OPEN_STATES)
            # A refused batch must not hide what was done before.
            dropped = "not_started" if "not_started" in states else next(ended, None)
            if dropped is not None:
                self.omitted[dropped] += 1
                del self.entries[states.index(dropped)]
        return entry

    def find(self, call_id: int) -> Entry | None:
        """Returns the entry of a call; None if it was dropped."""
        return next((entry for entry in self.entries if entry.id == call_id), None)
