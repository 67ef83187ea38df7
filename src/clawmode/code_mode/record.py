"""The record of a parked cell and its list of calls, as JSON."""

import json
from collections import Counter
from typing import Any

from clawmode.code_mode.cell import Cell
from clawmode.code_mode.ledger import Entry, Ledger
from clawmode.sandbox.protocol import Completion, Failure, Limits, Request, Start
from clawmode.types import CALL_STATES, ERROR_CODES, JsonObject, JsonValue


def write_cell(cell: Cell, *, unheard: bool) -> JsonObject:
    """Returns the state of a cell as JSON, without its memory, calls and replies.

    Args:
        cell: The cell.
        unheard: Whether no caller has received its output.
    """
    start: JsonValue = None
    if cell.start is not None:
        start = {"source": cell.start.source, "language": cell.start.language}
    outcome: JsonValue = None
    if isinstance(cell.outcome, Failure):
        outcome = {"code": cell.outcome.code, "error": cell.outcome.error}
    elif cell.outcome is not None:
        outcome = {"value": cell.outcome.value.decode("utf-8", "replace")}
    return {
        "park": cell.park,
        "parent": cell.parent_id,
        "outputLeft": cell.output_left,
        "yields": list[JsonValue](cell.yields),
        "lookups": [
            [request.id, request.method, request.args.decode("utf-8", "replace")]
            for request in cell.lookups
        ],
        "waiting": cell.waiting,
        "state": cell.uses_state,
        "timers": cell.timers,
        "due": cell.due,
        "clock": cell.clock,
        "start": start,
        # Output that no caller received: the `wait` that drove the cell was cancelled, or may die.
        "output": list[JsonValue](cell.output) if unheard else [],
        "attachments": list[JsonValue](cell.attachments) if unheard else [],
        "outcome": outcome,
    }


def write_calls(cell: Cell) -> JsonObject:
    """Returns the list of calls, which outlives the cell. It was part of the record once."""
    entries = cell.ledger.entries
    return {
        "park": cell.park,
        "ledger": [[entry.id, entry.tool_id, entry.effect, entry.state] for entry in entries],
        # Apart from the ledger, whose rows older builds read by their length.
        "inputs": [[entry.id, entry.input] for entry in entries if entry.input is not None],
        "omitted": dict[str, JsonValue](cell.ledger.omitted),
    }


def read_calls(kept: Any) -> Ledger:
    """Reads the list of calls that `write_calls` returned."""
    inputs, ledger = dict(kept.get("inputs", ())), Ledger()
    for number, tool_id, effect, state in kept["ledger"]:
        if state not in CALL_STATES:
            raise ValueError(state)
        ledger.entries.append(Entry(number, tool_id, effect, state, inputs.get(number)))
    ledger.omitted = Counter(kept["omitted"])
    return ledger


def _read_outcome(kept: Any) -> Completion | Failure | None:
    if kept is None:
        return None
    if "value" in kept:
        return Completion(kept["value"].encode(), parsed=json.loads(kept["value"]))
    if kept["code"] not in ERROR_CODES:
        raise ValueError(kept["code"])
    return Failure(kept["code"], kept["error"])


def read_cell(run_id: str, record: Any) -> Cell:
    """Reads what `write_cell` returned, with the build that wrote it."""
    cell = Cell(record["parent"], record["outputLeft"], id=run_id, stage="claimed", stored=True)
    cell.park, cell.build = record["park"], record["build"]
    cell.image = bytes.fromhex(record["image"])
    cell.yields, cell.waiting = record["yields"], record.get("waiting", 0)
    cell.uses_state = record.get("state", False)
    for number, method, args in record.get("lookups", ()):
        cell.lookups.append(Request(number, method, args.encode()))
    cell.set_timers(record["timers"], record["due"])
    cell.output, cell.outcome = record["output"], _read_outcome(record["outcome"])
    cell.attachments = record.get("attachments", [])
    if record["start"] is not None:
        cell.start = Start(record["start"]["source"], record["start"]["language"], Limits())
    return cell
