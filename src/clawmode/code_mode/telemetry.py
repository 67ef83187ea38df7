"""Counters of one run, as the page names them: no inputs, no secrets, no environment."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from clawmode.types import JsonValue

MAX_TOOL_IDS = 100

# Of a search that found nothing. A program may search for anything that it holds: what is longer
# than a word, or has a digit in it, may be a key.
MAX_UNMATCHED = 20
MAX_UNMATCHED_CHARS = 20


@dataclass(slots=True)
class Telemetry:
    """What happened in a run, in numbers. Outlives the catalog that it counted."""

    catalog_size: int = 0
    sources: dict[str, int] = field(default_factory=dict[str, int])
    execs: int = 0
    waits: int = 0
    searches: int = 0
    describes: int = 0
    calls: int = 0
    called: dict[str, None] = field(default_factory=dict[str, None])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    unmatched: dict[str, None] = field(default_factory=dict[str, None])
    snapshots: dict[str, int] = field(
        default_factory=lambda: {"created": 0, "restored": 0, "expired": 0, "deleted": 0}
    )

    def call(self, tool_id: str) -> None:
        """A nested call was started."""
        self.calls += 1
        if len(self.called) < MAX_TOOL_IDS:
            self.called[tool_id] = None

    def miss(self, words: Iterable[str]) -> None:
        """A search found nothing; these of its words are in no entry."""
        for word in words:
            if len(self.unmatched) == MAX_UNMATCHED:
                return
            if len(word) <= MAX_UNMATCHED_CHARS and word.isalpha():
                self.unmatched[word] = None

    def fail(self, code: str) -> None:
        """A cell failed with this code."""
        self.failures[code] = self.failures.get(code, 0) + 1

    def to_json(self) -> dict[str, JsonValue]:
        """The page's camelCase object."""
        made: dict[str, JsonValue] = {
            "visibleTools": ["exec", "wait"],
            "catalogSize": self.catalog_size,
            "sources": dict[str, JsonValue](self.sources),
            "execCount": self.execs,
            "waitCount": self.waits,
            "searchCount": self.searches,
            "describeCount": self.describes,
            "callCount": self.calls,
            "calledToolIds": list[JsonValue](self.called),
            "failures": dict[str, JsonValue](self.failures),
            "snapshots": dict[str, JsonValue](self.snapshots),
        }
        if self.unmatched:
            made["unmatchedSearchWords"] = list[JsonValue](self.unmatched)
        return made
