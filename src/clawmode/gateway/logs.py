"""What the gateway writes about itself: lines of JSON on stderr, and the last of them in memory.

Secrets that the setup knows, and what looks like one, are struck out before anything is kept.
"""

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Iterable

from clawmode.agent.known_secrets import known_secrets
from clawmode.command_setup import Setup
from clawmode.redaction import Redactor
from clawmode.terminal import one_line
from clawmode.tools import JsonObject

MAX_LINES = 2_000
MAX_CHARS = 4_000

RECENT: deque[JsonObject] = deque(maxlen=MAX_LINES)
"""For `logs.tail`."""


class _Lines(logging.Handler):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self.redactor = redactor
        self._json = not sys.stderr.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            line: JsonObject = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": self.redactor.text(text)[:MAX_CHARS],
            }
            RECENT.append(line)
            words = f"{line['level']}: {line['message']}"
            shown = json.dumps(line) if self._json else one_line(words, MAX_CHARS)
            sys.stderr.write(f"{shown}\n")
        except Exception:
            self.handleError(record)


def log_to_stderr(setup: Setup) -> None:
    """Writes what `clawmode` logs."""
    lines = _Lines(Redactor(known_secrets(setup)))
    for name in ("clawmode", "uvicorn"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO if name == "clawmode" else logging.WARNING)
        logger.addHandler(lines)
        logger.propagate = False


def learn(secrets: Iterable[str]) -> None:
    """Strikes these out from now on, and no others."""
    redactor = Redactor(secrets)
    for handler in logging.getLogger("clawmode").handlers:
        if isinstance(handler, _Lines):
            handler.redactor = redactor
