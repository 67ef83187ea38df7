"""Figures for whoever watches the process, in the text format of Prometheus. Without secrets."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from clawmode import __version__
from clawmode.gateway.service import Gateway

MEDIA_TYPE = "text/plain; version=0.0.4"


def render(gateway: Gateway) -> str:
    """All of them."""
    runs = Counter[str](run.state for run in gateway.host.runtime.runs())
    approvals = gateway.approvals
    waiting = len(approvals.pending()) + len(approvals.pending_inputs())
    return "\n".join(
        (
            *_family("info", "gauge", "What runs.", {f'version="{__version__}"': 1}),
            *_one("uptime_seconds", "gauge", "Since the start.", time.time() - gateway.started_at),
            *_one("clients", "gauge", "Connected clients.", len(gateway.clients)),
            *_family("runs", "gauge", "Runs that are known.", _by("state", runs)),
            *_one("questions", "gauge", "Questions that wait for people.", waiting),
            *_family("requests_total", "counter", "Requests.", _by("method", gateway.counters)),
            *_one("resident_memory_bytes", "gauge", "Of this process alone.", _memory()),
            "",
        )
    )


def _by(label: str, counted: Mapping[str, float]) -> dict[str, float]:
    return {f'{label}="{name}"': count for name, count in sorted(counted.items())}


def _one(name: str, kind: str, about: str, value: float) -> Iterable[str]:
    return _family(name, kind, about, {"": value})


def _family(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterable[str]:
    yield f"# HELP clawmode_{name} {about}"
    yield f"# TYPE clawmode_{name} {kind}"
    for labels, value in values.items():
        yield f"clawmode_{name}{f'{{{labels}}}' if labels else ''} {value:g}"


def _memory() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
