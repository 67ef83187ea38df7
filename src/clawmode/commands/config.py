"""`config check|schema`."""

from dataclasses import asdict
from typing import Annotated

import typer

from clawmode.commands.common import (
    FAILED,
    JsonOption,
    command,
    new_app,
)

app = new_app("Look at the configuration.")


@app.command("check")
def check_config(
    file: Annotated[
        str | None, typer.Argument(help="Default: where every command looks for it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say all that is wrong with the configuration file.

    Exit status: 0 it can be used, perhaps with warnings; 1 it cannot; 2 usage.
    """
    with command() as out:
        from clawmode.command_setup import check
        from clawmode.listings import print_report

        report = check(file)
        if as_json:
            path = None if report.path is None else str(report.path)
            out.json(asdict(report) | {"path": path})
        else:
            print_report(out, report)
    raise typer.Exit(FAILED if report.errors else 0)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    with command() as out:
        from clawmode.agent.settings import schema

        out.json(schema())
