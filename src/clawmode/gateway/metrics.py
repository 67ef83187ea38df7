"""The page `/metrics`: counters and gauges in the text format of Prometheus, without secrets.

Labels have a bounded number of values: names of the protocol and the configuration, and the models
that `figures` counts.

Written by hand: the values exist already in the gateway, and a client library would keep its own
copy of them, for the whole process.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode import __version__
from clawmode.gateway.figures import SECONDS, Figures

if TYPE_CHECKING:
    from clawmode.gateway.gateway import Gateway

MEDIA_TYPE = "text/plain; version=0.0.4"


def render(gateway: "Gateway") -> str:
    """Returns the text of the page."""
    figures, approvals = gateway.figures, gateway.approvals
    states = Counter[str](run.state for run in gateway.host.runtime.runs())
    under_way = {state: states[state] for state in ("queued", "running")}
    waiting = len(approvals.pending()) + len(approvals.pending_inputs())
    tokens = {
        _labels(model=model, kind=kind): count
        for (model, kind), count in sorted(figures.tokens.items())
    }
    servers = {view.name: float(view.state == "ready") for view in gateway.host.runtime.servers()}
    return "\n".join(
        (
            *_family(
                "info", "gauge", "The version of clawmode.", {_labels(version=__version__): 1}
            ),
            *_one(
                "uptime_seconds",
                "gauge",
                "Seconds since the start.",
                time.time() - gateway.started_at,
            ),
            *_one("clients", "gauge", "Connected clients.", len(gateway.clients)),
            *_family("runs", "gauge", "Runs that have not ended.", _by("state", under_way)),
            *_family("runs_total", "counter", "Runs that have ended.", _by("status", figures.runs)),
            *_durations(figures),
            *_family("tokens_total", "counter", "Tokens, as providers count them.", tokens),
            *_family(
                "model_requests_total",
                "counter",
                "Requests to models, failed ones included, of runs that have ended.",
                _by("model", figures.requests),
            ),
            *_family(
                "model_errors_total",
                "counter",
                "Requests to models that failed.",
                _by("kind", figures.errors),
            ),
            *_family(
                "tool_calls_total",
                "counter",
                "Tool calls by models, and by the programs that models write.",
                {_labels(by=by, result=how): n for (by, how), n in sorted(figures.calls.items())},
            ),
            *_family("cron_runs_total", "counter", "Runs of jobs.", _by("status", figures.cron)),
            *_family("mcp_server_up", "gauge", "Connected MCP servers.", _by("server", servers)),
            *_one("questions", "gauge", "Questions that are pending.", waiting),
            *_family(
                "requests_total", "counter", "Requests of clients.", _by("method", gateway.counters)
            ),
            *_one(
                "resident_memory_bytes",
                "gauge",
                "Resident memory of this process, without its workers.",
                resident_bytes(),
            ),
            "",
        )
    )


def _durations(figures: Figures) -> Iterable[str]:
    """Yields the histogram of the durations of runs, whose buckets are cumulative."""
    name = "run_duration_seconds"
    yield from _head(name, "histogram", "Durations of runs that have ended.")
    total = 0
    for bound, count in zip((*map(_number, SECONDS), "+Inf"), figures.durations, strict=True):
        total += count
        yield _sample(f"{name}_bucket", _labels(le=bound), total)
    yield _sample(f"{name}_sum", "", figures.seconds)
    yield _sample(f"{name}_count", "", total)


# ---- The format ----


def _by(label: str, counted: Mapping[str, float]) -> dict[str, float]:
    return {_labels(**{label: name}): count for name, count in sorted(counted.items())}


def _labels(**labels: str) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def _one(name: str, kind: str, about: str, value: float) -> Iterable[str]:
    return _family(name, kind, about, {"": value})


def _family(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterable[str]:
    yield from _head(name, kind, about)
    for labels, value in values.items():
        yield _sample(name, labels, value)


def _head(name: str, kind: str, about: str) -> Iterable[str]:
    yield f"# HELP clawmode_{name} {about}"
    yield f"# TYPE clawmode_{name} {kind}"


def _sample(name: str, labels: str, value: float) -> str:
    return f"clawmode_{name}{f'{{{labels}}}' if labels else ''} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def resident_bytes(process: int | str = "self") -> int:
    """Returns the resident memory of a process; 0 if it has ended, or where there is no `/proc`."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
