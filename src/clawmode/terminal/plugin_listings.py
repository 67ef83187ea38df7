"""The output of `clawmode plugins`: the table and the reports."""

from collections.abc import Sequence

from clawmode.app.console import ProgramOutput
from clawmode.plugins.check import Report
from clawmode.plugins.install import InstallResult
from clawmode.plugins.loader import PluginView

COLUMNS = ("id", "version", "enabled", "loaded", "brings", "problem")
ADDITIONS = ("tools", "hooks", "namespaces")


def print_views(out: ProgramOutput, views: Sequence[PluginView]) -> None:
    """Prints a table with one row per plugin."""
    rows: list[list[str]] = []
    for view in views:
        flags = ["yes" if flag else "no" for flag in (view.enabled, view.loaded)]
        counts = {kind: len(getattr(view, kind)) for kind in ADDITIONS}
        added = [f"{n} {kind if n > 1 else kind[:-1]}" for kind, n in counts.items() if n]
        added += ["skills"] if view.skills else []
        names = ", ".join(added) or "-"
        rows.append([view.id, view.version or "-", *flags, names, view.problem or "-"])
    out.table(COLUMNS, rows)


def print_report(out: ProgramOutput, report: Report) -> None:
    """Prints what a plugin adds, and all its problems."""
    view = report.view
    state = "" if view.enabled else ", disabled: not loaded"
    out.say(f"{view.id} {view.version or '-'}, {view.folder or 'nowhere'}{state}")
    additions = {kind: getattr(view, kind) for kind in ADDITIONS} | {"skills": report.skills}
    for kind, names in additions.items():
        if names:
            out.say(f"  {kind}: {', '.join(names)}")
    for fault in report.faults:
        out.say(f"  wrong: {fault}")


def print_installed(out: ProgramOutput, done: InstallResult) -> None:
    """Prints what was installed, and where."""
    was = "" if done.replaced is None else f", instead of {done.replaced or 'another version'}"
    version = f" {done.version}" if done.version else ""
    out.say(f"installed the {done.kind} {done.name}{version}{was}: {done.folder}")
    for note in done.notes:
        out.say(f"  note: {note}")
