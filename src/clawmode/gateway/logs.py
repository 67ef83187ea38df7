"""The gateway's log: lines of JSON on stderr, and the last of them in memory.

Secrets of the configuration, and texts that look like secrets, are redacted before a line is stored
or written.
"""

import itertools
import json
import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable

from clawmode.agent.requests import RunResult
from clawmode.agent.run import AgentRun
from clawmode.redaction import Redactor
from clawmode.text import one_line
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

MAX_LINES = 2_000
MAX_CHARS = 4_000
MAX_SENDER = 100

ABOUT = "about"
"""The attribute of a log record that holds its fields: `logger.info(…, extra={ABOUT: {…}})`."""

MODEL = ("provider", "model")

RECENT: deque[JsonObject] = deque(maxlen=MAX_LINES)
"""The last lines, for the method `logs.tail`. Each has its number `n`."""

_numbers = itertools.count(1)


class _LineHandler(logging.Handler):
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
            if record.exc_info and record.exc_info[1] is not None:
                trace = "".join(traceback.format_exception(record.exc_info[1]))
                line["traceback"] = self.redactor.text(trace)[-MAX_CHARS:]
            about: JsonObject | None = getattr(record, ABOUT, None)
            if about:
                line[ABOUT] = self.redactor.value(about)
            RECENT.append({**line, "n": next(_numbers)})
            at = time.strftime("%H:%M:%S", time.localtime(record.created))
            shown = json.dumps(line) if self._json else in_words(line, at)
            sys.stderr.write(f"{shown}\n")
            sys.stderr.flush()
        except Exception:  # else it would reach the code that logs
            self.handleError(record)


def in_words(line: JsonObject, at: str = "") -> str:
    """Returns a line for people, without its fields.

    Args:
        line: A line of `RECENT`.
        at: The time to show, if not the line's own.
    """
    return one_line(f"{at or line['at']} {line['level']}: {line['message']}", MAX_CHARS)


def log_to_stderr() -> None:
    """Writes log records of `clawmode` to stderr, and warnings of other libraries and of Python."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    root.addHandler(_LineHandler(Redactor()))
    logging.getLogger("clawmode").setLevel(logging.INFO)
    logging.captureWarnings(True)


def learn(secrets: Iterable[str]) -> None:
    """Redacts these secrets from now on, instead of those before."""
    redactor = Redactor(secrets)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            handler.redactor = redactor


# ---- Runs ----


def run_started(run: AgentRun) -> None:
    """Logs the start of a run, with its sender: the name of a token, or a person on a channel."""
    request = run.request
    trigger = request.trigger or request.origin or request.channel or "client"
    sender = request.sender[:MAX_SENDER]
    text = "run %s%s started: session %s, trigger %s"
    about = {"event": "run.start", **_identify(run), "trigger": trigger, "sender": sender or None}
    # In quotes: a sender on a channel chooses the name, and could imitate the rest of the line.
    of = f" of {sender!r}" if sender else ""
    logger.info(text, run.id, of, run.session.key, trigger, extra={ABOUT: about})


def run_ended(run: AgentRun, result: RunResult) -> None:
    """Logs the end of a run, with its status, model, tokens and error."""
    seconds = max(result.ended_at - result.started_at, 0.0) if result.started_at else 0.0
    model = "/".join(str(result.metadata[key]) for key in MODEL if result.metadata.get(key))
    tokens = {key: result.usage.get(key, 0) for key in ("input", "output")}
    about = {
        "event": "run.end",
        **_identify(run),
        "status": result.status,
        "model": model or None,
        "usage": result.usage,
        "durationMs": round(seconds * 1000),
        "error": result.error,
    }
    level = logging.INFO if result.status in ("ok", "aborted") else logging.WARNING
    text = "run %s ended: %s after %.1f s, model %s, %s tokens in, %s out%s"
    error = f": {result.error}" if result.error else ""
    values = (result.status, seconds, model or "none", tokens["input"], tokens["output"], error)
    logger.log(level, text, run.id, *values, extra={ABOUT: about})


def _identify(run: AgentRun) -> JsonObject:
    return {"runId": run.id, "sessionKey": run.session.key, "agentId": run.session.agent_id}
