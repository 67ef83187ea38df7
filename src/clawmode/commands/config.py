"""The commands `config check`, `config trust` and `config schema`."""

from dataclasses import asdict
from typing import Annotated

import typer

from clawmode.commands.options import FAILED, JsonOption, Options, command, new_app, takes

app = new_app("Check and trust the configuration, or print its schema.")


@app.command("check")
@takes("state")
def check_config(
    options: Options,
    file: Annotated[
        str | None, typer.Argument(help="The file. Default: the file that every command uses.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the errors and warnings of the configuration file.

    An error keeps an agent or a gateway from starting. The check runs no plugin, hook or command
    of the file. It reads environment variables, so run it where the agent will run.

    Exit status: 0 no errors; 1 errors, or warnings with --strict; 2 wrong usage.
    """
    with command() as out:
        from clawmode.app.loading import check
        from clawmode.app.setup import state_folder
        from clawmode.terminal.listings import print_report

        report = check(file, state_folder(options.state))
        if as_json:
            path = None if report.path is None else str(report.path)
            out.json(asdict(report) | {"path": path})
        else:
            print_report(out, report)
    raise typer.Exit(FAILED if report.errors or (strict and report.warnings) else 0)


@app.command("trust")
def trust_config(
    file: Annotated[
        str | None, typer.Argument(help="The file. Default: the file that every command uses.")
    ] = None,
) -> None:
    """Trust the configuration file as it is now.

    A clawmode.json5 in the working folder is used only after you have agreed to it, at a terminal
    or with this command. A file that --config or CLAWMODE_CONFIG names needs no agreement.
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
