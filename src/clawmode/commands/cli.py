"""The program `clawmode`: the table of its commands, without logic of its own.

Commands import heavy modules when they run, so that `--help` answers at once. Stdout is for the
output and the result of a program or agent; everything else, such as prints of tools, goes to
stderr.
"""

import os
import sys
from typing import Annotated

import typer

from clawmode.commands import agent, cells, chat, config, cron, gateway, plugins, servers, tools
from clawmode.commands.options import new_app

app = new_app(
    "Gives a language model two tools, exec and wait, instead of two hundred.", completion=True
)
app.command("run")(cells.run)
app.command("wait")(cells.wait_for)
app.command("agent")(agent.agent)
app.command("chat")(chat.chat)
app.command("mcp")(servers.serve_mcp)
app.command("login")(servers.login)
app.command("doctor")(servers.doctor)
app.add_typer(agent.sessions_app, name="sessions")
app.add_typer(agent.trajectory_app, name="trajectory")
app.add_typer(gateway.app, name="gateway")
app.add_typer(cron.app, name="cron")
app.add_typer(tools.app, name="tools")
app.add_typer(plugins.app, name="plugins")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        from clawmode import __version__

        typer.echo(f"clawmode {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Accepts the options that precede a command."""


def main() -> None:
    """Runs the program `clawmode`; the entry point of the package."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A closed stream is replaced: otherwise the next file that is opened gets its descriptor.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    app()
