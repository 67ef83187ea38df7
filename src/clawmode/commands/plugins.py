"""`plugins list|install|remove|check`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    ConfigOption,
    JsonOption,
    StateOption,
    command,
    gather,
    load_setup,
    new_app,
    say,
)

if TYPE_CHECKING:
    from clawmode.app.console import ProgramOutput
    from clawmode.app.setup import Setup
    from clawmode.plugins.install import Installer, InstallResult

app = new_app("Look at plugins, install and remove them.")


@app.command("list")
def list_plugins(
    config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """List the plugins that there are, loaded or not, and why not."""
    with plugin_command() as out:
        from clawmode.plugins.setup import open_plugins
        from clawmode.terminal.plugin_listings import print_views

        setup = _setup(config, state)
        views = open_plugins(setup.configuration, setup.state).views
        if as_json:
            out.json({"plugins": [view.to_json() for view in views]})
        elif views:
            print_views(out, views)
        else:
            say("there are no plugins: see clawmode plugins install")


@app.command("install")
def install_plugin(
    source: Annotated[
        str, typer.Argument(help="A folder, or an archive: .zip, .tar.gz, with a plugin or skill.")
    ],
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install or update a plugin or a skill.

    The operator's policy and the hooks have to agree. Its code runs, with all that you may
    do. Exit status: 0 installed; 1 refused; 2 usage.
    """
    with plugin_command() as out:
        import anyio

        from clawmode.plugins.install import Installer
        from clawmode.plugins.setup import open_plugins
        from clawmode.terminal.plugin_listings import print_installed

        setup = _setup(config, state)
        plugins = open_plugins(setup.configuration, setup.state)
        for view in plugins.views:
            if view.problem is not None:
                say(f"the plugin {view.id} is not loaded, so its hooks have no say: {view.problem}")
        installer = Installer(configuration=setup.configuration, state=setup.state, plugins=plugins)
        done = anyio.run(_install, installer, source)
        if as_json:
            out.json(done.to_json())
        else:
            print_installed(out, done)


@app.command("remove")
def remove_plugin(
    name: Annotated[
        str,
        typer.Argument(metavar="ID", help="A plugin's id or a skill's name; or skill:NAME."),
    ],
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a plugin or a skill that was installed.

    Exit status: 0 removed; 1 there is none, or it was not installed by this command; 2 usage.
    """
    with plugin_command() as out:
        from clawmode.plugins.install import remove
        from clawmode.plugins.setup import describe_plugins

        setup = _setup(config, state)
        done = remove(setup.state, name, describe_plugins(setup.configuration, setup.state))
        if as_json:
            out.json(done.to_json())
        else:
            out.say(f"removed the {done.kind} {done.name}: {done.folder}")


@app.command("check")
def check_plugins(
    which: Annotated[
        str, typer.Argument(metavar="ID|FOLDER", help="Default: all that are enabled.")
    ] = "",
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load plugins, and list what is wrong with them.

    Exit status: 0 nothing is wrong; 1 something is, or there is no such plugin; 2 usage.
    """
    with plugin_command() as out:
        from clawmode.plugins.check import reports
        from clawmode.plugins.setup import open_plugins, settings_of
        from clawmode.terminal.plugin_listings import print_report

        setup = _setup(config, state)
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


def _setup(config: str | None, state: str | None) -> "Setup":
    return load_setup(gather(None, config, None, None, "ask", state))


@contextmanager
def plugin_command() -> "Iterator[ProgramOutput]":
    """As `command`; and what is logged meanwhile is said in harmless lines."""
    with command() as out:
        from clawmode.terminal.plugin_listings import told_logs

        with told_logs():
            yield out
