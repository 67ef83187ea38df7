"""The commands `run` and `wait`: one cell at the terminal."""

import signal
from typing import Annotated, Any, NoReturn

import typer

from clawmode.commands.options import (
    EXIT,
    LIMITS,
    TOOLS,
    USAGE,
    JsonOption,
    Options,
    QuietOption,
    command,
    exit_on_error,
    fail,
    load_setup,
    read_source,
    takes,
)


@takes(*TOOLS, "approve", "state", *LIMITS)
def run(
    options: Options,
    file: Annotated[str, typer.Argument(help="A JavaScript or TypeScript file, or - for stdin.")],
    language: Annotated[
        str | None,
        typer.Option(help="javascript or typescript. Default: by the extension of the file."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait", help="Wait with a program that waits, or leave it waiting."
        ),
    ] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one cell: the body of an async function.

    The configuration sets the limits that you do not give here.

    Exit status: 0 completed, 1 failed, 2 wrong usage, 3 waiting, 130 stopped.
    """
    chosen = language or ("typescript" if file.endswith((".ts", ".mts", ".cts")) else "javascript")
    with exit_on_error():
        from clawmode.sandbox.protocol import LANGUAGES

        if chosen not in LANGUAGES:
            fail(f"--language must be {' or '.join(LANGUAGES)}, not {chosen!r}", USAGE)
        cell = {"code": read_source(file), "language": chosen, "wait": wait}
    _run_cell(options, as_json=as_json, quiet=quiet, taken=file == "-", **cell)


@takes(*TOOLS, "approve", "state", *LIMITS)
def wait_for(
    options: Options,
    run_id: Annotated[str, typer.Argument(metavar="RUNID", help="The id that `run` printed.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Resume a program that `run` left waiting.

    The program needs the same tools. The exit statuses are those of `run`.
    """
    _run_cell(options, run_id=run_id, as_json=as_json, quiet=quiet)


def _run_cell(
    options: Options, *, as_json: bool, quiet: bool, taken: bool = False, **given: Any
) -> NoReturn:
    """Runs the cell that a `CellRequest` describes, and exits."""
    with command() as out:
        from clawmode.terminal.cell import CellRequest, CellTurn, CellView
        from clawmode.terminal.turn import TerminalTurn

        request = CellRequest(**given)
        result = TerminalTurn(
            turn=CellTurn(load_setup(options)),
            options=options,
            out=out,
            view=CellView,
            as_json=as_json,
            quiet=quiet,
            stdin_is_taken=taken,
            later=not request.wait,
            signals=(signal.SIGINT,),
        ).run(request)
    raise typer.Exit(EXIT[result.status])
