"""What the commands share: options, reading them, stdout, and errors without tracebacks."""

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


_TYPE_OF_ARGUMENT = re.compile(r"^(  [A-Z|]+) <[^>]*>", re.MULTILINE)


def _name_values(params: Iterable[Any]) -> None:
    """Names the values of arguments and options in the help by their own last word: `FILE`."""
    for param in params:
        if param.metavar is None and not getattr(param, "is_flag", False):
            param.metavar = param.opts[0].rpartition("-")[2].upper()


class _Command(TyperCommand):
    """A command whose help says `FILE`, where typer would say `{file}` and `file <str>`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self.params)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the line `Usage:`."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        """What `--help` prints."""
        return _TYPE_OF_ARGUMENT.sub(r"\1", super().get_help(ctx))


class _Group(TyperGroup):
    """A group of commands with the same help for its own options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _name_values(self.params)


class _App(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Callable[[Run], Run]:
        """Registers a function as a command."""
        return super().command(name, cls=_Command, **options)


def new_app(about: str, *, completion: bool = False) -> typer.Typer:
    """A group of commands. The outermost one can install completion for the user's shell."""
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
        help="A Tool, several, or a callable that returns them; can be repeated. The current "
        "folder can be imported from.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Default: clawmode.json5, if there is one."),
]
McpConfigOption = Annotated[
    str | None,
    typer.Option(
        "--mcp-config",
        metavar="FILE",
        help="MCP servers of another client's file (mcpServers), beside those configured.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="JSON|FILE",
        help='What is allowed of what the configuration allows: {"allow": [], "deny": []}.',
    ),
]
ApproveOption = Annotated[
    Approve,
    typer.Option(
        metavar="ask|always|never",
        help='What to do about calls of tools that are not declared effect="read".',
    ),
]
AgentApproveOption = Annotated[
    Approve | None,
    typer.Option(
        metavar="ask|always|never",
        help='What to do about calls of tools that are not declared effect="read". Default: '
        "`tools.approve` of the configuration, else ask.",
    ),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="FOLDER", help="Where programs wait. Default: the user's state folder."
    ),
]
TimeoutOption = Annotated[int | None, typer.Option(help="Time for each exec or wait.")]
MemoryOption = Annotated[int | None, typer.Option(help="Heap of the program.")]
OutputOption = Annotated[int | None, typer.Option(help="Output and value, as JSON.")]
SnapshotOption = Annotated[int | None, typer.Option(help="A frozen program.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show nested calls.")]


# ---- Reading them ----


def limits_of(
    timeout_ms: int | None, memory: int | None, output: int | None, snapshot: int | None
) -> dict[str, int | None]:
    """The limits that were given, by the name of their setting."""
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
    """The options that several commands have, as they were given."""
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
    """Reads all that the options name, and says what was not taken as it was given."""
    from clawmode.app.loading import set_up

    setup = set_up(options, purpose)
    for note in setup.notes:
        say(note)
    return setup


def find_gateway(options: "Options") -> "RunningGateway | None":
    """The gateway that runs on the state folder. Where none ever did, nothing of it is imported."""
    from clawmode.app.setup import state_folder

    state = state_folder(options.state)
    if not (state / GATEWAY_LOCK).exists():
        return None
    from clawmode.rpc import presence

    return presence.find(state) if presence.is_held(state) else None


def connected(setup: "Setup") -> "Setup":
    """With the tools of plugins and of its MCP servers, to be looked at."""
    from clawmode.plugins.setup import loaded_plugins

    with loaded_plugins(setup.configuration, setup.state) as plugins:
        setup = replace(setup, tools=[*setup.tools, *plugins.tools])
    if not setup.servers:
        return setup
    from clawmode.app.servers import with_servers

    return with_servers(setup)


def read_source(file: str) -> str:
    """The text of a file, or of stdin."""
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
    """What most commands do at their edges: stdout of their own, and no traceback for anybody."""
    from clawmode.app.console import ProgramOutput

    out = ProgramOutput()
    with told_errors():
        yield out
    if out.failure:
        fail(f"the output could not be written: {out.failure}", FAILED)


@contextmanager
def told_errors() -> "Iterator[None]":
    """Errors as a line and an exit status."""
    from clawmode.exceptions import ClawmodeError, ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        fail(str(error), USAGE)
    except ClawmodeError as error:
        fail(str(error), FAILED)
    except KeyboardInterrupt:
        say("stopped")
        if any(not thread.daemon for thread in threading.enumerate()[1:]):
            # A tool that is not async goes on in its thread, and would hold the process.
            os._exit(STOPPED)
        raise typer.Exit(STOPPED) from None


def fail(message: str, status: int) -> NoReturn:
    """Says why, and ends the command."""
    say(message)
    raise typer.Exit(status)


def say(message: str) -> None:
    """Says something to whoever runs the command."""
    from clawmode.app.console import print_note

    print_note(message)
