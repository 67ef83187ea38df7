"""Recognizes rate limits in what a tool raised or answered, and how long the service asks to wait.

The texts and data are written by strangers: only a bounded part of them is read, and nothing of
them is kept but a number.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from email.utils import parsedate_to_datetime
from itertools import islice

from clawmode.types import dataclass

TOO_MANY_REQUESTS = 429

MAX_PAUSE_MS = 24 * 3600 * 1000
"""A longer pause is reported as this one: no program waits for a day."""

MAX_TEXT, MAX_TEXTS = 4000, 16_000
"""Characters of one text, and of all texts together, that are looked at."""

MAX_NODES = 200
MAX_DEPTH = 4

_STATUS_KEYS = frozenset(("status", "statuscode", "httpstatus", "httpstatuscode", "code"))
_NAME_KEYS = frozenset(("code", "type", "error", "reason", "name", "status", "kind"))
_PAUSE_KEYS = {
    "retryafter": 1000.0,
    "retryafterseconds": 1000.0,
    "retryaftersec": 1000.0,
    "retryafterms": 1.0,
    "retryaftermillis": 1.0,
    "retryin": 1000.0,
}
_ATTRIBUTES = ("status_code", "status", "code", "http_status")

# The name of a class, or a code such as `RATE_LIMIT_EXCEEDED` and `ThrottlingException`.
_NAME = re.compile(r"rate.?limit|too.?many.?requests|throttl", re.IGNORECASE)
# A whole text: "the field rate_limit is unknown" and "order 429 does not exist" are no rate limits.
_TEXT = re.compile(
    r"too many requests"
    r"|rate[ _-]?limited"
    r"|rate[ _-]?limits? (?:(?:was|is|has been) )?(?:exceeded|reached|hit)"
    r"|\b(?:exceed|over|hit|reach)\w*+ (?:[\w'-]++ ){0,4}rate[ _-]?limit"
    r"|(?:http|status|error)(?: (?:code|status))?[ :=/]{1,3}(?:\d\.\d )?429\b",
    re.IGNORECASE,
)
_PAUSE = re.compile(
    r"(?:retry|try|wait)[ _-]?(?:again )?(?:after|in|for)?[ :=]{1,3}(\d{1,9}(?:\.\d{1,6})?) ?"
    r"(ms\b|milliseconds?\b|s\b|secs?\b|seconds?\b|m\b|mins?\b|minutes?\b)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A call was refused because there were too many; `retry_after_ms` is None if nobody says."""

    retry_after_ms: int | None = None


def rate_limit_of(error: BaseException) -> RateLimit | None:
    """Returns the rate limit that an exception reports: its attributes, response, data or text.

    Knows the exceptions of httpx, requests, aiohttp, urllib, botocore and the SDKs of models, and
    any exception with `status_code == 429` or with a number of seconds in `retry_after`.
    """
    try:
        response = _attribute(error, "response")
        headers = _attribute(response, "headers") or _attribute(error, "headers")
        pause = _pause_of(_attribute(error, "retry_after"), 1000)
        named = _NAME.search(type(error).__name__) is not None
        limited = pause is not None or named or _has_status(error) or _has_status(response)
        found = rate_limit_in([_attribute(error, "data"), response, _text_of(error)])
        if not limited and found is None:
            return None
        if pause is None:
            pause = _pause_in_headers(headers)
        if pause is None:
            pause = found.retry_after_ms if found else _pause_in_text(_text_of(error))
        return RateLimit(pause)
    except Exception:  # foreign code: comparisons, truth values, mappings
        return None


def rate_limit_in(data: object) -> RateLimit | None:
    """Returns the rate limit that data of an error reports, such as an MCP error's `data`."""
    limited, pause, room = False, None, MAX_TEXTS
    nodes: list[tuple[object, int]] = [(data, 0)]
    for seen, (node, depth) in enumerate(nodes):
        if seen >= MAX_NODES:
            break
        inner: Iterable[object] = ()
        if isinstance(node, str):
            text = node[: min(room, MAX_TEXT)]
            room -= len(text)
            if _TEXT.search(text) or text.startswith("429 "):
                limited = True
                pause = pause if pause is not None else _pause_in_text(text)
        elif isinstance(node, Mapping):
            found, told = _read_members(node)
            limited, pause = limited or found, told if told is not None else pause
            inner = node.values()
        elif isinstance(node, Sequence):
            inner = node
        if depth < MAX_DEPTH:
            nodes.extend((item, depth + 1) for item in islice(inner, MAX_NODES - len(nodes)))
    return RateLimit(pause) if limited else None


def _read_members(node: Mapping[object, object]) -> tuple[bool, int | None]:
    limited, pause = False, None
    for key, value in islice(node.items(), MAX_NODES):
        name = key[:40].lower().replace("-", "").replace("_", "") if isinstance(key, str) else ""
        if name in _STATUS_KEYS and value in (TOO_MANY_REQUESTS, str(TOO_MANY_REQUESTS)):
            limited = True
        elif name in _NAME_KEYS and isinstance(value, str) and len(value) < 60:
            limited = limited or _NAME.search(value) is not None
        elif name in _PAUSE_KEYS:
            pause = _pause_of(value, _PAUSE_KEYS[name])
    return limited, pause


def _has_status(holder: object) -> bool:
    return any(_attribute(holder, name) == TOO_MANY_REQUESTS for name in _ATTRIBUTES)


def _attribute(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # a property of foreign code
        return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except Exception:  # `__str__` of foreign code
        return ""


def _pause_in_headers(headers: object) -> int | None:
    try:
        get = getattr(headers, "get", None)
        for name, unit in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
            # A plain dict of headers is not case-insensitive.
            value = get and (get(name) or get(name.title()))
            if value and (pause := _pause_of(value, unit)) is not None:
                return pause
    except Exception:  # headers of foreign code
        return None
    return None


def _pause_in_text(text: str) -> int | None:
    found = _PAUSE.search(text[:MAX_TEXT])
    if found is None:
        return None
    unit = (found[2] or "s").lower()
    factor = 1.0 if unit.startswith(("ms", "mil")) else 60_000.0 if unit[0] == "m" else 1000.0
    return _pause_of(float(found[1]), factor)


def _pause_of(value: object, unit: float) -> int | None:
    """Returns a pause in milliseconds; `value` counts `unit` milliseconds, or is an HTTP date."""
    if isinstance(value, timedelta):
        value, unit = value.total_seconds(), 1000.0
    if isinstance(value, str):
        value = value.strip()[:64]
        try:
            value = float(value)
        except ValueError:
            try:
                value, unit = parsedate_to_datetime(value).timestamp() - time.time(), 1000.0
            except (TypeError, ValueError, OverflowError):
                return _pause_in_text("retry after " + value) if value[:1].isdigit() else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    # Before it is multiplied: an integer may be too large for a float.
    return min(math.ceil(min(max(value, 0), MAX_PAUSE_MS) * unit), MAX_PAUSE_MS)
