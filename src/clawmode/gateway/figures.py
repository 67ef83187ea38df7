"""Counters of the gateway since its start, which `metrics` renders."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any

from clawmode.agent.requests import RunResult
from clawmode.types import JsonObject

SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0)
"""The upper bounds of the histogram of durations."""

MAX_MODELS = 100
"""The most models with counters of their own: clients can invent names. More count as `other`."""

TOKENS = {
    "input": "input",
    "output": "output",
    "cacheRead": "cache_read",
    "cacheWrite": "cache_write",
}


class Figures:
    """The counters, updated by events of runs, tools and jobs."""

    def __init__(self) -> None:
        self.runs = Counter[str]()
        self.durations = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0
        self.tokens = Counter[tuple[str, str]]()
        self.requests = Counter[str]()
        self.errors = Counter[str]()
        self.calls = Counter[tuple[str, str]]()
        self.cron = Counter[str]()
        self._models: set[str] = set()

    def run_ended(self, result: RunResult) -> None:
        """Counts a run that has ended, with its model requests and tokens."""
        self.runs[result.status] += 1
        if result.started_at:
            seconds = max(result.ended_at - result.started_at, 0.0)
            self.durations[bisect_left(SECONDS, seconds)] += 1
            self.seconds += seconds
        metadata: Mapping[str, Any] = result.metadata
        model = f"{metadata.get('provider', '')}/{metadata.get('model', '')}"
        if model == "/":
            model = "none"
        elif model in self._models or len(self._models) < MAX_MODELS:
            self._models.add(model)
        else:
            model = "other"
        for key, kind in TOKENS.items():
            self.tokens[model, kind] += int(str(result.usage.get(key, 0)))
        self.requests[model] += metadata.get("modelRequests", 0)
        self.errors.update(metadata.get("modelErrors", {}))

    def tool_event(self, data: JsonObject) -> None:
        """Counts a tool call that has ended."""
        if data.get("phase") == "end":
            made_by = "program" if "parentId" in data else "model"
            self.calls[made_by, "error" if data.get("isError") else "ok"] += 1
