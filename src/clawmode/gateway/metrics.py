"""Figures for whoever watches the process, in the text format of Prometheus. Without secrets.

Labels have few values: those of the protocol and the configuration, and a bounded number of models.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from clawmode import __version__
from clawmode.gateway.figures import SECONDS, Figures
from clawmode.gateway.gateway import Gateway

MEDIA_TYPE = "text/plain; version=0.0.4"


def render(gateway: Gateway) -> str:
    """All of them."""
    figures, approvals = gateway.figures, gateway.approvals
    states = Counter[str](run.state for run in gateway.host.runtime.runs())
    under_way = {state: states[state] for state in ("queued", "running")}
    waiting = len(approvals.pending()) + len(approvals.pending_inputs())
    servers = {view.name: float(view.state == "ready") for view in gateway.host.runtime.servers()}
    return "\n".join(
        (
            *_family("info", "gauge", "What runs.", {_labels(version=__version__): 1}),
            *_one("uptime_seconds", "gauge", "Since the start.", time.time() - gateway.started_at),
            *_one("clients", "gauge", "Connected clients.", len(gateway.clients)),
            *_family("runs", "gauge", "Runs under way.", _by("state", under_way)),
            *_family("runs_total", "counter", "Runs that have ended.", _by("status", figures.runs)),
            *_durations(figures),
            *_family("tokens_total", "counter", "Tokens, as providers count.", _tokens(figures)),
            *_family(
                "model_requests_total",
                "counter",
                "Requests to models, with those that failed, of runs that have ended.",
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
                "Calls of tools by models, and by the programs that they write.",
                {_labels(by=by, result=how): n for (by, how), n in sorted(figures.calls.items())},
            ),
            *_family("cron_runs_total", "counter", "Runs of jobs.", _by("status", figures.cron)),
            *_family("mcp_server_up", "gauge", "Connected MCP servers.", _by("server", servers)),
            *_one("questions", "gauge", "Questions that wait for people.", waiting),
            *_family("requests_total", "counter", "Requests.", _by("method", gateway.counters)),
            *_one("resident_memory_bytes", "gauge", "Of this process alone.", _memory()),
            "",
        )
    )


def _tokens(figures: Figures) -> dict[str, float]:
    return {
        _labels(model=model, kind=kind): count
        for (model, kind), count in sorted(figures.tokens.items())
    }


def _durations(figures: Figures) -> Iterable[str]:
    """The histogram of how long runs took, from their start to their end."""
    name = "run_duration_seconds"
    yield from _head(name, "histogram", "How long runs took that have ended.")
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
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


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


def _memory() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
