"""The program `clawmode`: the table of its commands, without logic of its own.

Commands import heavy modules when they run, and only the module of the command that was asked for
is imported, so that every command starts quickly. Stdout is for the output and the result of a
program or agent; everything else, such as prints of tools, goes to stderr.
"""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from clawmode.commands.options import new_app

COMMANDS = {
    "run": "cells:run",
    "wait": "cells:wait_for",
    "agent": "agent:agent",
    "chat": "chat:chat",
    "acp": "chat:acp",
    "dashboard": "gateway:dashboard",
    "setup": "servers:set_up",
    "login": "servers:login",
    "doctor": "servers:doctor",
}
GROUPS = {
    "sessions": "agent:sessions_app",
    "trajectory": "agent:trajectory_app",
    "gateway": "gateway:app",
    "mcp": "servers:mcp_app",
    "cron": "cron:app",
    "tools": "tools:app",
    "plugins": "plugins:app",
    "config": "config:app",
    "state": "state:app",
}
"""The commands and the groups of commands: `module:attribute`, in the order of the help."""

app: typer.Typer
"""All commands. `__getattr__` makes it."""


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = make_app([*COMMANDS, *GROUPS])
    return made


def make_app(names: Iterable[str]) -> typer.Typer:
    """Makes the program with some of its commands."""
    made = new_app(
        "Gives a language model two tools, exec and wait, instead of two hundred.", completion=True
    )
    made.callback()(_root)
    for name in names:
        module, _, attribute = (COMMANDS.get(name) or GROUPS[name]).partition(":")
        found = getattr(import_module(f"clawmode.commands.{module}"), attribute)
        if name in COMMANDS:
            made.command(name)(found)
        else:
            made.add_typer(found, name=name)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        from clawmode import __version__

        typer.echo(f"clawmode {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Accepts the options that precede a command."""


def main() -> None:
    """Runs the program `clawmode`; the entry point of the package."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A closed stream is replaced: otherwise the next file that is opened gets its descriptor.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    is_known = asked in COMMANDS or asked in GROUPS
    # The shell's completion, the help and the error about an unknown command need all commands.
    program = make_app([asked]) if is_known and "_CLAWMODE_COMPLETE" not in os.environ else None
    (program or __getattr__("app"))()
