"""Shows judged rows to people."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from bench.judging import Judged


def number(value: float) -> str:
    """A figure with three digits, or more where it has more before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table_of(rows: Sequence[Judged], *, title: str, compared: str) -> Table:
    """The rows as a table.

    Args:
        rows: The rows.
        title: The title of the table.
        compared: What the rows are compared with; empty if with nothing.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("work", overflow="fold")
    has_before = any(row.before is not None for row in rows)
    headings = [
        *(["before"] if has_before else []),
        *("measured", "rounds", "x floor", "CPU each"),
        *([f"x {compared}"] if compared else []),
        *("goal", ""),
    ]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for row in rows:
        # Rows of one measurement share what stands before the colon.
        group, _, part = row.work.rpartition(": ")
        if group and group != last:
            table.add_row(group)
        last = group
        name = f"  {part}" if group else part
        if row.failure or row.rounds is None or row.recorded is None:
            table.add_row(Text(f"{name}: FAILED", "bold red"))
            continue
        before = f"{number(row.before)} {row.unit}" if row.before is not None else ""
        cells = [
            *([before] if has_before else []),
            f"{number(row.measured)} {row.unit}",
            f"{number(row.rounds.low)} to {number(row.rounds.high)}",
            number(row.recorded.middle) if row.is_relative else "",
            f"{number(row.cpu)} ms/{row.cpu_unit}" if row.cpu is not None else "",
        ]
        changed = [_change(row)] if compared else []
        missed = "[yellow]missed, busy[/]" if row.is_busy else "[red]missed[/]"
        verdict = {None: "", True: "[green]ok[/]", False: missed}[row.ok]
        table.add_row(name, *cells, *changed, row.goal, verdict)
    return table


def _change(row: Judged) -> Text:
    made = Text(no_wrap=True)
    for name, change in (("", row.change), ("CPU ", row.cpu_change)):
        if change is not None:
            style = "bold red" if change.worse else "green" if change.better else ""
            mark = " WORSE" if change.worse else " better" if change.better else ""
            spread = f" ({change.low:.2f} to {change.high:.2f})"
            between = "\n" if made else ""
            made.append(f"{between}{name}{change.factor:.2f}{spread}{mark}", style)
    return made
