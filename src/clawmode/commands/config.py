"""`config check|schema`."""

from dataclasses import asdict
from typing import Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    JsonOption,
    StateOption,
    command,
    new_app,
)

app = new_app("Look at the configuration.")


@app.command("check")
def check_config(
    file: Annotated[
        str | None, typer.Argument(help="Default: where every command looks for it.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for warnings too.")] = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is wrong with the configuration file.

    That is everything for which an agent or a gateway would not start. Nothing of the
    file runs: no plugin, hook or command. Variables of the environment are read, so run it where
    the agent will run.

    Exit status: 0 it can be used, perhaps with warnings; 1 it cannot, or with --strict there are
    warnings; 2 usage.
    """
    with command() as out:
        from clawmode.app.loading import check
        from clawmode.app.setup import state_folder
        from clawmode.terminal.listings import print_report

        report = check(file, state_folder(state))
        if as_json:
            path = None if report.path is None else str(report.path)
            out.json(asdict(report) | {"path": path})
        else:
            print_report(out, report)
    raise typer.Exit(FAILED if report.errors or (strict and report.warnings) else 0)


@app.command("trust")
def trust_config(
    file: Annotated[
        str | None, typer.Argument(help="Default: where every command looks for it.")
    ] = None,
) -> None:
    """Agree to the configuration file as it is now.

    A clawmode.json5 in the working folder is used once its user has agreed to it, at a terminal or
    by this command; one that is named with --config or CLAWMODE_CONFIG needs no agreement.
    """
    with command() as out:
        from clawmode.app.loading import agree

        path, lines = agree(file)
        out.say("\n".join([f"trusted: {path}", *(f"  {line}" for line in lines)]))


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    with command() as out:
        from clawmode.config.resolve import schema

        out.json(schema())
