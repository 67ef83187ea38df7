"""The commands `plugins list`, `plugins install`, `plugins remove` and `plugins check`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from clawmode.commands.options import FAILED, JsonOption, Options, command, load_setup, new_app, say

if TYPE_CHECKING:
    from clawmode.app.console import ProgramOutput
    from clawmode.plugins.install import Installer, InstallResult

app = new_app("List, check, install and remove plugins.")


@app.command("list")
def list_plugins(options: Options, as_json: JsonOption = False) -> None:
    """List all plugins, whether each is loaded, and the reason if not."""
    with plugin_command() as out:
        from clawmode.plugins.setup import open_plugins
        from clawmode.terminal.plugin_listings import print_views

        setup = load_setup(options)
        views = open_plugins(setup.configuration, setup.state).views
        if as_json:
            out.json({"plugins": [view.to_json() for view in views]})
        elif views:
            print_views(out, views)
        else:
            say("there are no plugins: add one with clawmode plugins install")


@app.command("install")
def install_plugin(
    options: Options,
    source: Annotated[
        str,
        typer.Argument(help="A plugin or a skill: a folder, or an archive (.zip, .tar.gz, .tgz)."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Install or update a plugin or a skill.

    The operator's policy and the hooks have to agree. The code of a plugin runs with all your
    permissions.

    Exit status: 0 installed; 1 rejected; 2 wrong usage.
    """
    with plugin_command() as out:
        import anyio

        from clawmode.plugins.install import Installer
        from clawmode.plugins.setup import open_plugins
        from clawmode.terminal.plugin_listings import print_installed

        setup = load_setup(options)
        plugins = open_plugins(setup.configuration, setup.state)
        for view in plugins.views:
            if view.problem is not None:
                say(f"the plugin {view.id} is not loaded, so its hooks do not run: {view.problem}")
        installer = Installer(configuration=setup.configuration, state=setup.state, plugins=plugins)
        done = anyio.run(_install, installer, source)
        if as_json:
            out.json(done.to_json())
        else:
            print_installed(out, done)


@app.command("remove")
def remove_plugin(
    options: Options,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The id of a plugin or the name of a skill; or skill:NAME."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Remove an installed plugin or skill.

    Exit status: 0 removed; 1 not found, or not installed by `plugins install`; 2 wrong usage.
    """
    with plugin_command() as out:
        from clawmode.plugins.install import remove
        from clawmode.plugins.setup import open_plugins

        setup = load_setup(options)
        done = remove(setup.state, name, open_plugins(setup.configuration, setup.state, load=False))
        if as_json:
            out.json(done.to_json())
        else:
            out.say(f"removed the {done.kind} {done.name}: {done.folder}")


@app.command("check")
def check_plugins(
    options: Options,
    which: Annotated[
        str, typer.Argument(metavar="ID|FOLDER", help="The plugin. Default: all enabled plugins.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Load plugins, and list their problems.

    Exit status: 0 no problems; 1 problems, or there is no such plugin; 2 wrong usage.
    """
    with plugin_command() as out:
        from clawmode.plugins.check import reports
        from clawmode.plugins.setup import open_plugins, settings_of
        from clawmode.terminal.plugin_listings import print_report

        setup = load_setup(options)
        plugins = open_plugins(setup.configuration, setup.state)
        found = reports(plugins, which, settings_of(setup.configuration))
        if as_json:
            out.json({"plugins": [report.to_json() for report in found]})
        for report in () if as_json else found:
            print_report(out, report)
        if not found:
            say("there are no plugins")
    raise typer.Exit(FAILED if any(report.faults for report in found) else 0)


async def _install(installer: "Installer", source: str) -> "InstallResult":
    from clawmode.terminal.interrupts import interruptible

    async with interruptible():
        done = await installer.install(source)
    return done


@contextmanager
def plugin_command() -> "Iterator[ProgramOutput]":
    """Like `command`, and prints the log of the block on stderr, escaped."""
    with command() as out:
        import logging

        from clawmode.app.console import printed_logs

        def hides(record: logging.LogRecord) -> bool:  # errors of plugins, which the table shows
            return record.name == "clawmode.plugins" and record.levelno >= logging.ERROR

        with printed_logs(hides=hides):
            yield out
