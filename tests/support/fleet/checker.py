"""Compares three things: what happened outside, what programs there were, and what was told.

Nothing may happen twice, no program may be lost, and whoever asked must have been told of every
effect: that it happened, or that nobody can know. Nobody may be told of an abort, or of anything
else, that nobody caused.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.fleet.outside import Effect

from clawmode.code_mode.config import Durability
from clawmode.code_mode.exits import HELD

DONE = "done"
UNKNOWN = "outcome_unknown"
WAITING, AGAIN = "waiting", "again"
RETRY_CODES = ("snapshot_restore_failed",)
CAUSED = ("timeout",)
"""The codes with which a program may fail: a node that was stopped, or is busy, may be too late.
Nobody does anything to a program that would cause another code."""

REFUSED = "store_unavailable"
"""What a program may be told of a call that was not made."""


@dataclass
class Program:
    """A program that was started.

    Attributes:
        calls: The kind of tool by the key of each call.
        run: The id under which it waits, once a caller knows it.
        asked: True if a caller of `exec` has lost its node before an answer came.
        holder: The node that keeps it until its store is back, if a caller was told so.
    """

    name: str
    source: str
    calls: dict[str, str]
    run: str = ""
    asked: bool = False
    holder: str = ""


@dataclass(frozen=True)
class Telling:
    """The result of an `exec` or a `wait`, as a caller got it from a node."""

    program: str
    node: str
    result: Mapping[str, Any]

    @property
    def refusal(self) -> str:
        """Why a `wait` found nothing to wait for; empty if it did."""
        notes = [note for note in self.result.get("notes", ()) if note.startswith("refusal: ")]
        return notes[0].removeprefix("refusal: ") if notes else ""

    @property
    def end(self) -> str:
        """How the program ended, or `waiting`, or `again` if the caller has to ask again."""
        status, refusal = str(self.result["status"]), self.refusal
        if status == WAITING:
            return WAITING
        if refusal in ("busy", "elsewhere") or self.result.get("code") in RETRY_CODES:
            return AGAIN
        return refusal or status

    @property
    def held(self) -> bool:
        """True if only the process that told this has the program, until its store is back."""
        return any(HELD.format("") in note for note in self.result.get("notes", ()))

    def __str__(self) -> str:
        result = {key: value for key, value in self.result.items() if key != "telemetry"}
        return f"{self.program} on {self.node}: {json.dumps(result)}"

    def account(self) -> dict[str, str]:
        """Returns what was told about each call: `done`, or the code of an error."""
        if self.end == "completed":
            return dict(self.result["value"]["told"])
        words = {"completed": DONE, "unknown": UNKNOWN}
        return {
            str(call["input"]["key"]): words.get(call["state"], call["state"])
            for call in self.result.get("calls", ())
            if "key" in (call.get("input") or {})
        }


def name_in(result: Mapping[str, Any]) -> str:
    """Returns the name of the program that a final result is of; empty if it does not say."""
    if result["status"] == "completed":
        return str(result["value"]["name"])
    keys = (call["input"]["key"] for call in result.get("calls", ()) if call.get("input"))
    return next((str(key).partition("/")[0] for key in keys), "")


@dataclass
class Verdict:
    """What a checker found.

    Attributes:
        problems: What must not be, in words.
        counts: What was counted, by name.
    """

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def blame(self, what: str, words: str) -> None:
        """Notes a problem."""
        self.counts[what] += 1
        self.problems.append(f"{what}: {words}")


def check(
    programs: Iterable[Program],
    effects: Iterable[Effect],
    tellings: Iterable[Telling],
    durability: Durability,
) -> Verdict:
    """Checks a whole run.

    Args:
        programs: All that were started.
        effects: The log of the world outside.
        tellings: All results that callers got, also from nodes that they no longer waited for.
        durability: With `parked`, a program that runs is lost with its node, and its caller is told
            so; with `effects`, no program is lost.
    """
    verdict = Verdict()
    happened = Counter((effect.kind, effect.key) for effect in effects)
    told: defaultdict[str, list[Telling]] = defaultdict(list)
    heard: defaultdict[str, list[Telling]] = defaultdict(list)
    for telling in tellings:
        heard[telling.program].append(telling)
        if telling.end not in (WAITING, AGAIN):
            told[telling.program].append(telling)
    for program in programs:
        verdict.counts["programs"] += 1
        before = len(verdict.problems)
        ends = told[program.name]
        acted = [
            key for key, kind in program.calls.items() if kind != "look" and happened[kind, key]
        ]
        if not acted and _died_with_its_holder(heard[program.name], ends):
            verdict.counts["died with its node, told so"] += 1
            continue
        account = _end_of(program, ends, durability, happened, verdict)
        for key, kind in program.calls.items():
            count = happened[kind, key]
            verdict.counts["calls"] += count > 0
            if kind == "act" and count > 1:
                verdict.blame("doubled", f"{key} happened {count} times")
            elif kind == "put" and count > 1:
                verdict.counts["repeated, as allowed"] += 1
            if account is not None:
                _compare(key, kind, count, account.get(key), verdict)
        for telling in ends:
            _check_causes(telling, verdict)
        if len(verdict.problems) > before:
            verdict.problems += map(str, heard[program.name])
            verdict.problems.append(f"{program.source}\nhas acted: {acted}")
    return verdict


def _died_with_its_holder(heard: list[Telling], ends: list[Telling]) -> bool:
    """True if the node that kept a program for its store died before: no living one knows of it."""
    holders = {telling.node for telling in heard if telling.held}
    told_by = {telling.node for telling in ends}
    return bool(holders) and {it.end for it in ends} == {"unknown"} and not told_by & holders


def _end_of(
    program: Program,
    ends: list[Telling],
    durability: Durability,
    happened: Mapping[tuple[str, str], int],
    verdict: Verdict,
) -> dict[str, str] | None:
    """Counts how a program ended. Returns what was told of its calls; None if nothing had to be."""
    whole = [telling for telling in ends if telling.end in ("completed", "failed")]
    if len({json.dumps(telling.account(), sort_keys=True) for telling in whole}) > 1:
        verdict.blame("contradicted", f"{program.name} ended in several ways: {whole}")
    elif len(whole) > 1:
        verdict.blame("ended twice", f"{program.name}: {[telling.node for telling in whole]}")
    if whole:
        code = whole[0].result.get("code")
        verdict.counts[f"failed: {code}" if code else "completed"] += 1
        return whole[0].account()
    ways = {telling.end for telling in ends}
    if "finished" in ways:
        # Its node died after the end, before the caller heard of it. The list of calls is kept.
        verdict.counts["ended unheard"] += 1
        kept = [telling.account() for telling in ends if telling.account()]
        return (kept or [{}])[0] if durability == "effects" else None
    if durability == "parked" and ("lost" in ways or program.asked):
        verdict.counts["told as lost"] += 1
        return None
    if not ends and program.asked and not program.run:
        # The node died during `exec`, and nobody can find the program: it must not have acted.
        verdict.counts["never began"] += 1
        if acted := [key for kind, key in happened if kind == "act" and key in program.calls]:
            verdict.blame("lost", f"{program.name} acted ({acted}) and cannot be found")
        return None
    verdict.blame("lost", f"{program.name} ({program.run or 'no id'}): {sorted(ways) or 'no end'}")
    return None


def _check_causes(telling: Telling, verdict: Verdict) -> None:
    """Looks for something in the end of a program that nobody caused."""
    code = telling.result.get("code")
    words = {REFUSED, *(("failed", "cancelled", "not_started") if code in CAUSED else ())}
    odd = {word for word in telling.account().values() if word not in (DONE, UNKNOWN, *words)}
    if telling.end in ("aborted", "expired") or (telling.end == "failed" and code not in CAUSED):
        verdict.blame("spurious", f"{telling.program} was told {code}: {telling.result['error']}")
    elif odd and telling.end in ("completed", "failed"):
        verdict.blame("spurious", f"{telling.program} was told of its calls: {sorted(odd)}")


def _compare(key: str, kind: str, count: int, word: str | None, verdict: Verdict) -> None:
    """Compares what happened with what was told about one call."""
    if word == DONE:
        if not count:
            verdict.blame("invented", f"{key} was told as done and never happened")
    elif word == UNKNOWN:
        verdict.counts["unknown, told" if kind == "act" else "unknown reads and puts, told"] += 1
    elif kind == "look":
        return
    elif word is None:
        if count:
            verdict.blame("unreported", f"{key} happened, and nobody was told")
    elif count and word != "cancelled":
        verdict.blame("denied", f"{key} happened, and was told as {word}")
    else:
        verdict.counts["refused, told"] += 1
