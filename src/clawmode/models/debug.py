"""The debug environment variables, and the redaction of what they log.

    CLAWMODE_DEBUG_CODE_MODE=1                          why code mode is active or not
    CLAWMODE_DEBUG_MODEL_TRANSPORT=1                    requests: address, status, time, bytes
    CLAWMODE_DEBUG_MODEL_PAYLOAD=tools|full-redacted    names of the tools, or the whole body
    CLAWMODE_DEBUG_SSE=events|peek                      event names, or the first five events

The names of the contract, OPENCLAW_DEBUG_*, work too; a CLAWMODE_DEBUG_* variable takes precedence.
Without these variables nothing is logged. With them, parts of the conversation may be logged, keys
never.
"""

import json
import logging
import os
import re
import sys
from typing import Literal, TypeAlias

from clawmode.redaction import Redactor
from clawmode.types import change_texts, dataclass

logger = logging.getLogger("clawmode.models")

CODE_MODE = "CLAWMODE_DEBUG_CODE_MODE"
TRANSPORT = "CLAWMODE_DEBUG_MODEL_TRANSPORT"
PAYLOAD = "CLAWMODE_DEBUG_MODEL_PAYLOAD"
SSE = "CLAWMODE_DEBUG_SSE"

MAX_PAYLOAD = 64 << 10
"""The most characters of a body that are logged."""
MAX_EVENT = 2 << 10
MAX_BLOB = 256
"""In characters. Longer base64 is an image or encrypted thinking, and is not logged."""

PayloadLevel: TypeAlias = Literal["", "tools", "full-redacted"]
SseLevel: TypeAlias = Literal["", "events", "peek"]

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class DebugFlags:
    """The values of the debug variables."""

    code_mode: bool = False
    transport: bool = False
    payload: PayloadLevel = ""
    sse: SseLevel = ""


def debug_flags() -> DebugFlags:
    """Reads the debug variables. An unknown value counts as off; a warning is logged once."""
    payload = _value(PAYLOAD)
    sse = _value(SSE)
    return DebugFlags(
        code_mode=_is_on(CODE_MODE),
        transport=_is_on(TRANSPORT),
        payload=payload if payload in ("tools", "full-redacted") else _off(PAYLOAD, payload),
        sse=sse if sse in ("events", "peek") else _off(SSE, sse),
    )


def _name_in_use(name: str) -> str:
    """Returns the variable that is set: ours, or that of the contract."""
    return name if name in os.environ else name.replace("CLAWMODE", "OPENCLAW")


def _value(name: str) -> str:
    return os.environ.get(_name_in_use(name), "").strip().lower()


def _is_on(name: str) -> bool:
    value = _value(name)
    return True if value in _ON else bool(_off(name, value))


def _off(name: str, value: str) -> Literal[""]:
    if value not in _OFF and (name, value) not in _warned:
        _warned.add((name, value))
        known = {PAYLOAD: "tools, full-redacted", SSE: "events, peek"}.get(name, "1")
        logger.warning("%s=%s is ignored; known: %s", _name_in_use(name), value[:40], known)
    return ""


def log(message: str, *args: object) -> None:
    """Logs a debug line; to stderr if the program has not configured logging."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    logger.info(message, *args)


# ---- Redaction ----

# The lookbehind prevents quadratic time: without it a run that is too short would be scanned again
# from each of its characters.
_BLOB = re.compile(
    rf"(?<![A-Za-z0-9_+/=-])(?:data:[\w/+.;=-]{{0,100}};base64,)?[A-Za-z0-9_+/=-]{{{MAX_BLOB},}}+"
)


def without_blobs(text: str) -> str:
    """Replaces long runs of base64 by their length."""
    return _BLOB.sub(lambda found: f"<{len(found[0])} characters of base64>", text)


def for_log(data: bytes, redactor: Redactor, limit: int) -> str:
    """Returns JSON, valid or not, without secrets and base64, cut to `limit` characters."""
    try:
        value = redactor.value(json.loads(data))
        text = json.dumps(change_texts(value, without_blobs), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = without_blobs(redactor.text(data.decode("utf-8", "replace")))
    if len(text) > limit:
        return f"{text[:limit]}… ({len(data)} bytes in total)"
    return text
