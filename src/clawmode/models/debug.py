"""The debugging switches, and how what they show is made fit to be shown.

    CLAWMODE_DEBUG_CODE_MODE=1                          how code mode was activated
    CLAWMODE_DEBUG_MODEL_TRANSPORT=1                    requests: where to, status, time, bytes
    CLAWMODE_DEBUG_MODEL_PAYLOAD=tools|full-redacted    the tools that were sent, or the whole body
    CLAWMODE_DEBUG_SSE=events|peek                      the stream's events, or the first five of it

The contract calls them OPENCLAW_DEBUG_*; these names work too, unless ours is set.
Without them nothing is logged. With them, words of the conversation may be; keys never.
"""

import json
import logging
import os
import re
import sys
from dataclasses import dataclass
from typing import Literal, TypeAlias

from clawmode.redaction import Redactor
from clawmode.types import JsonValue

logger = logging.getLogger("clawmode.models")

CODE_MODE = "CLAWMODE_DEBUG_CODE_MODE"
TRANSPORT = "CLAWMODE_DEBUG_MODEL_TRANSPORT"
PAYLOAD = "CLAWMODE_DEBUG_MODEL_PAYLOAD"
SSE = "CLAWMODE_DEBUG_SSE"

MAX_PAYLOAD = 64 << 10
"""Characters of a body that are logged."""
MAX_EVENT = 2 << 10
MAX_BLOB = 256
"""Characters; what is longer and looks like base64 is a picture, or thoughts that are sealed."""

PayloadLevel: TypeAlias = Literal["", "tools", "full-redacted"]
SseLevel: TypeAlias = Literal["", "events", "peek"]

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")
_told: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class DebugFlags:
    """What is to be logged."""

    code_mode: bool = False
    transport: bool = False
    payload: PayloadLevel = ""
    sse: SseLevel = ""


def debug_flags() -> DebugFlags:
    """Reads the switches. What no switch knows is told once, and counts as off."""
    payload = _value(PAYLOAD)
    sse = _value(SSE)
    return DebugFlags(
        code_mode=_is_on(CODE_MODE),
        transport=_is_on(TRANSPORT),
        payload=payload if payload in ("tools", "full-redacted") else _off(PAYLOAD, payload),
        sse=sse if sse in ("events", "peek") else _off(SSE, sse),
    )


def _set(name: str) -> str:
    """The name under which a switch is set: ours, or that of the contract."""
    return name if name in os.environ else name.replace("CLAWMODE", "OPENCLAW")


def _value(name: str) -> str:
    return os.environ.get(_set(name), "").strip().lower()


def _is_on(name: str) -> bool:
    value = _value(name)
    return True if value in _ON else bool(_off(name, value))


def _off(name: str, value: str) -> Literal[""]:
    if value not in _OFF and (name, value) not in _told:
        _told.add((name, value))
        known = {PAYLOAD: "tools, full-redacted", SSE: "events, peek"}.get(name, "1")
        logger.warning("%s=%s is ignored; known: %s", _set(name), value[:40], known)
    return ""


def log(message: str, *args: object) -> None:
    """Logs what a switch asked for, on stderr if nobody has set up logging."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    logger.info(message, *args)


# ---- Striking out ----

# A run begins where none of its characters stands before it: else one that is too short would be
# looked at again from each of them.
_BLOB = re.compile(
    rf"(?<![A-Za-z0-9_+/=-])(?:data:[\w/+.;=-]{{0,100}};base64,)?[A-Za-z0-9_+/=-]{{{MAX_BLOB},}}+"
)


def without_blobs(text: str) -> str:
    """The text without base64."""
    return _BLOB.sub(lambda found: f"<{len(found[0])} characters of base64>", text)


def shown(data: bytes, redactor: Redactor, limit: int) -> str:
    """JSON, or what should be some, fit to be logged: without secrets and base64, cut."""
    try:
        value = redactor.value(json.loads(data))
        text = json.dumps(_without_blobs(value), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = without_blobs(redactor.text(data.decode("utf-8", "replace")))
    if len(text) > limit:
        return f"{text[:limit]}… ({len(data)} bytes in all)"
    return text


def _without_blobs(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_blobs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_blobs(item) for item in value]
    return without_blobs(value) if isinstance(value, str) else value
