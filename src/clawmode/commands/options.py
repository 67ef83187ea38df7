"""The options that commands share, how they are read, and how errors become exit statuses."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from clawmode.app.console import ProgramOutput
    from clawmode.app.setup import Options, Purpose, Setup
    from clawmode.rpc.presence import RunningGateway

FAILED = 1
USAGE = 2
STOPPED = 130
GATEWAY_LOCK = "gateway.lock"

Run = TypeVar("Run", bound=Callable[..., Any])


# typer shows the type of an argument behind its name, as in `FILE <str>`.
_TYPE_OF_ARGUMENT = re.compile(r"^(  [A-Z|]+) <[^>]*>", re.MULTILINE)


def _name_values(params: Iterable[Any]) -> None:
    """Names the values of arguments and options in the help by their last word, such as `FILE`."""
    for param in params:
        if param.metavar is None and not getattr(param, "is_flag", False):
            param.metavar = param.opts[0].rpartition("-")[2].upper()


class _Command(TyperCommand):
    """A command whose help shows `FILE`, where typer would show `{file}` and `file <str>`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self.params)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        return _TYPE_OF_ARGUMENT.sub(r"\1", super().get_help(ctx))


class _Group(TyperGroup):
    """A group of commands whose help names values in the same way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self.params)


class _App(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Callable[[Run], Run]:
        return super().command(name, cls=_Command, **options)


def new_app(about: str, *, completion: bool = False) -> typer.Typer:
    """Makes a group of commands.

    Args:
        about: The help text of the group.
        completion: Add the options that install completion for the user's shell.
    """
    return _App(
        cls=_Group,
        help=about,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich takes longer to import than the rest of `--help`
    )


# ---- Options ----

Approve: TypeAlias = Literal["ask", "always", "never"]

ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE:ATTRIBUTE",
        help="Python tools: a Tool, a list of them, or a function that returns either. Can be "
        "repeated. Modules are also imported from the current folder.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration file. Default: clawmode.json5, if there is one.",
    ),
]
McpConfigOption = Annotated[
    str | None,
    typer.Option(
        "--mcp-config",
        metavar="FILE",
        help="A file with the MCP servers of another client (mcpServers), in addition to the "
        "servers of the configuration.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="JSON|FILE",
        help="Restrict the tools further than the configuration does: "
        '{"allow": [...], "deny": [...]}.',
    ),
]
ApproveOption = Annotated[
    Approve,
    typer.Option(
        metavar="ask|always|never",
        help='How to decide about calls of tools that are not declared effect="read".',
    ),
]
AgentApproveOption = Annotated[
    Approve | None,
    typer.Option(
        metavar="ask|always|never",
        help='How to decide about calls of tools that are not declared effect="read". Default: '
        "`tools.approve` of the configuration, else ask.",
    ),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="FOLDER",
        help="The state folder, with waiting programs, sessions and logins. Default: "
        "CLAWMODE_STATE, else the user's state folder.",
    ),
]
TimeoutOption = Annotated[
    int | None, typer.Option(help="The time limit of each exec or wait, in milliseconds.")
]
MemoryOption = Annotated[int | None, typer.Option(help="The most memory for a program.")]
OutputOption = Annotated[
    int | None, typer.Option(help="The largest output and value of a program, as JSON.")
]
SnapshotOption = Annotated[
    int | None, typer.Option(help="The largest snapshot of a waiting program.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show nested calls.")]


# ---- Reading them ----


def limits_of(
    timeout_ms: int | None, memory: int | None, output: int | None, snapshot: int | None
) -> dict[str, int | None]:
    """Returns the limits by the name of their setting; None for those that were not given."""
    return {
        "timeout_ms": timeout_ms,
        "memory_limit_bytes": memory,
        "max_output_bytes": output,
        "max_snapshot_bytes": snapshot,
    }


def gather(
    tools: list[str] | None,
    config: str | None,
    mcp_config: str | None,
    policy: str | None,
    approve: Approve | None = None,
    state: str | None = None,
    limits: dict[str, int | None] | None = None,
) -> "Options":
    """Returns the options that commands share as an `Options` object."""
    from clawmode.app.setup import Options

    return Options(
        tools=tuple(tools or ()),
        config=config,
        mcp_config=mcp_config,
        policy=policy,
        approve=approve,
        state=state,
        limits={name: value for name, value in (limits or {}).items() if value is not None},
    )


def load_setup(options: "Options", purpose: "Purpose" = "look") -> "Setup":
    """Loads the setup that the options name, and prints its warnings."""
    from clawmode.app.loading import set_up

    setup = set_up(options, purpose)
    for note in setup.notes:
        say(note)
    return setup


def load_basic_setup(config: str | None, state: str | None) -> "Setup":
    """Loads the setup of a command that needs no tools and asks no questions."""
    return load_setup(gather(None, config, None, None, "ask", state))


def find_gateway(options: "Options") -> "RunningGateway | None":
    """Returns the gateway that runs on the state folder, or None."""
    from clawmode.app.setup import state_folder

    state = state_folder(options.state)
    # Without the lock file no gateway ever ran here, and the import below is saved.
    if not (state / GATEWAY_LOCK).exists():
        return None
    from clawmode.rpc import presence

    return presence.find(state) if presence.is_held(state) else None


def with_all_tools(setup: "Setup") -> "Setup":
    """Returns the setup with the tools of its plugins and MCP servers; these cannot be called."""
    from clawmode.plugins.setup import loaded_plugins

    with loaded_plugins(setup.configuration, setup.state) as plugins:
        setup = replace(setup, tools=[*setup.tools, *plugins.tools])
    if not setup.servers:
        return setup
    from clawmode.app.servers import with_servers

    return with_servers(setup)


def read_source(file: str) -> str:
    """Returns the text of a file, or of stdin if the name is `-`."""
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode()
        return Path(file).read_text("utf-8")
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8: byte {error.start}", USAGE)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        fail(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", USAGE)


@contextmanager
def command() -> "Iterator[ProgramOutput]":
    """Yields stdout for the result of a command; errors become a line and an exit status."""
    from clawmode.app.console import ProgramOutput

    out = ProgramOutput()
    with exit_on_error():
        yield out
    if out.failure:
        fail(f"the output could not be written: {out.failure}", FAILED)


@contextmanager
def exit_on_error() -> "Iterator[None]":
    """Turns the errors of the block into a line on stderr and an exit status."""
    from clawmode.exceptions import ClawmodeError, ConfigurationError

    try:
        yield
    except ClawmodeError as error:
        from clawmode.sessions.keys import InvalidSession

        is_usage = isinstance(error, ConfigurationError | InvalidSession)
        fail(str(error), USAGE if is_usage else FAILED)
    except KeyboardInterrupt:
        say("stopped")
        if any(not thread.daemon for thread in threading.enumerate()[1:]):
            # A tool that is not async continues in its thread, and would keep the process alive.
            os._exit(STOPPED)
        raise typer.Exit(STOPPED) from None


def fail(message: str, status: int) -> NoReturn:
    """Prints the message on stderr, and ends the command with the status."""
    say(message)
    raise typer.Exit(status)


def say(message: str) -> None:
    """Prints a line on stderr that begins with `clawmode:`."""
    from clawmode.app.console import print_note

    print_note(message)
