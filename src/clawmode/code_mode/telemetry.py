"""The counters of one run, under the names of the spec. They contain no inputs and no secrets."""

from collections.abc import Iterable
from dataclasses import field

from clawmode.types import JsonValue, dataclass

MAX_TOOL_IDS = 100

# Words of searches that found nothing. A program may search for anything, so a text that is longer
# than a word, or has digits, may be a secret and is not recorded.
MAX_UNMATCHED = 20
MAX_UNMATCHED_CHARS = 20


@dataclass(slots=True)
class Telemetry:
    """The counters of one run, which outlive the catalogs of the run."""

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
        """Counts a nested call that was started."""
        self.calls += 1
        if len(self.called) < MAX_TOOL_IDS:
            self.called[tool_id] = None

    def miss(self, words: Iterable[str]) -> None:
        """Records the words of a search without results that occur in no entry."""
        for word in words:
            if len(self.unmatched) == MAX_UNMATCHED:
                return
            if len(word) <= MAX_UNMATCHED_CHARS and word.isalpha():
                self.unmatched[word] = None

    def fail(self, code: str) -> None:
        """Counts a cell that failed with this code."""
        self.failures[code] = self.failures.get(code, 0) + 1

    def to_json(self) -> dict[str, JsonValue]:
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
