"""What `clawmode plugins` prints."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from clawmode.app.console import ProgramOutput, print_stderr
from clawmode.plugins.check import Report
from clawmode.plugins.install import InstallResult
from clawmode.plugins.loader import PluginView

COLUMNS = ("id", "version", "enabled", "loaded", "brings", "problem")
BROUGHT = ("tools", "hooks", "namespaces")


def print_views(out: ProgramOutput, views: Sequence[PluginView]) -> None:
    """A table, one row for each plugin."""
    out.table(COLUMNS, [_row(view) for view in views])


def _row(view: PluginView) -> list[str]:
    brings = ", ".join(_counted(view))
    flags = ["yes" if flag else "no" for flag in (view.enabled, view.loaded)]
    return [view.id, view.version or "-", *flags, brings or "-", view.problem or "-"]


def _counted(view: PluginView) -> Iterable[str]:
    for what in BROUGHT:
        if count := len(getattr(view, what)):
            yield f"{count} {what.removesuffix('s') if count == 1 else what}"
    if view.skills:
        yield "skills"


def print_report(out: ProgramOutput, report: Report) -> None:
    """What a plugin brings, and all that is wrong with it."""
    view = report.view
    state = "" if view.enabled else ", disabled: not loaded"
    out.say(f"{view.id} {view.version or '-'}, {view.folder or 'nowhere'}{state}")
    brought = {what: getattr(view, what) for what in BROUGHT} | {"skills": report.skills}
    for what, names in brought.items():
        if names:
            out.say(f"  {what}: {', '.join(names)}")
    for fault in report.faults:
        out.say(f"  wrong: {fault}")


def print_installed(out: ProgramOutput, done: InstallResult) -> None:
    """What was installed, and where."""
    was = "" if done.replaced is None else f", instead of {done.replaced or 'what was there'}"
    version = f" {done.version}" if done.version else ""
    out.say(f"installed the {done.kind} {done.name}{version}{was}: {done.folder}")
    for note in done.notes:
        out.say(f"  note: {note}")


class _Told(logging.Handler):
    """What is logged, in a line for people; but for what a plugin's view tells."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "clawmode.plugins" or record.levelno < logging.ERROR:
            print_stderr(f"{record.name}: {record.getMessage()}")


@contextmanager
def told_logs() -> Iterator[None]:
    """A block whose logs go to stderr."""
    logger = logging.getLogger("clawmode")
    handler = _Told()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
