"""The options that commands share, how they are read, and how errors become exit statuses."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from clawmode.app.console import ProgramOutput
    from clawmode.app.setup import Options, Purpose, Setup
    from clawmode.models.base import ThinkingLevel
    from clawmode.rpc.presence import RunningGateway
else:
    Options = Any  # its import takes long; typer looks at the annotations of commands

FAILED = 1
USAGE = 2
STOPPED = 130
EXIT = {"ok": 0, "completed": 0, "error": FAILED, "failed": FAILED, "timeout": FAILED, "waiting": 3}
"""The exit statuses of turns."""

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
        def decorate(run: Run) -> Run:
            # A command of a group uses the configuration and the state folder if it uses any.
            takes_some = next(iter(signature(run).parameters), "") == "options"
            return add(takes("config", "state")(run) if takes_some else run)

        add = super().command(name, cls=_Command, **options)
        return decorate


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
_APPROVE = 'How to decide about calls of tools that are not declared effect="read".'
_APPROVE_DEFAULT = " Default: `tools.approve` of the configuration, else ask."


def _option(kind: Any, help: str, metavar: str | None = None, default: Any = None) -> Parameter:
    annotation = Annotated[kind, typer.Option(metavar=metavar, help=help)]
    return Parameter("_", Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_SHARED: dict[str, Parameter] = {
    "tools": _option(
        list[str] | None,
        "Python tools: a Tool, a list of them, or a function that returns either. Can be "
        "repeated. Modules are also imported from the current folder.",
        "MODULE:ATTRIBUTE",
    ),
    "config": _option(
        str | None, "The configuration file. Default: clawmode.json5, if there is one.", "FILE"
    ),
    "mcp_config": _option(
        str | None,
        "A file with the MCP servers of another client (mcpServers), in addition to the "
        "servers of the configuration.",
        "FILE",
    ),
    "policy": _option(
        str | None,
        'Restrict the tools further than the configuration does: {"allow": [...], "deny": [...]}.',
        "JSON|FILE",
    ),
    "approve": _option(Approve, _APPROVE, "ask|always|never", "ask"),
    "agent_approve": _option(Approve | None, _APPROVE + _APPROVE_DEFAULT, "ask|always|never"),
    "state": _option(
        str | None,
        "The state folder, with waiting programs, sessions and logins. Default: "
        "CLAWMODE_STATE, else the user's state folder.",
        "FOLDER",
    ),
    "timeout_ms": _option(int | None, "The time limit of each exec or wait, in milliseconds."),
    "memory_limit_bytes": _option(int | None, "The most memory for a program."),
    "max_output_bytes": _option(int | None, "The largest output and value of a program, as JSON."),
    "max_snapshot_bytes": _option(int | None, "The largest snapshot of a waiting program."),
}
TOOLS = ("tools", "config", "mcp_config", "policy")
LIMITS = ("timeout_ms", "memory_limit_bytes", "max_output_bytes", "max_snapshot_bytes")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show nested calls.")]
OnlyReplyOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")]
AgentOption = Annotated[str, typer.Option("--agent", help="The agent. Default: the default agent.")]
ModelOption = Annotated[str, typer.Option(help="provider/model, instead of the agent's.")]
ThinkingOption = Annotated[
    str, typer.Option(help="off, minimal, low, medium or high, instead of the agent's.")
]
SessionOption = Annotated[
    str, typer.Option(help="The conversation: a key or an id. Default: the main session.")
]


def takes(
    *names: str, first: Callable[[dict[str, Any]], None] = lambda given: None
) -> Callable[[Run], Run]:
    """Adds shared options to a command, which gets them as its parameter `options: Options`.

    Args:
        names: The options.
        first: Called with all arguments, before anything slow is imported.
    """
    added = [_SHARED[name].replace(name=name.removeprefix("agent_")) for name in names]

    def decorate(run: Run) -> Run:
        @wraps(run)
        def made(**given: Any) -> None:
            first(given)
            from clawmode.app.setup import Options

            shared = {it.name: given.pop(it.name) for it in added}
            shared["tools"] = tuple(shared.get("tools") or ())
            limits = {name: shared.pop(name, None) for name in LIMITS}
            shared["limits"] = {name: it for name, it in limits.items() if it is not None}
            run(Options(**shared), **given)

        _, *own = signature(run).parameters.values()
        own = [it.replace(kind=Parameter.KEYWORD_ONLY) for it in own]
        last = [it for it in own if it.name in ("as_json", "quiet")]  # also in the help
        made.__dict__["__signature__"] = Signature([*own[: len(own) - len(last)], *added, *last])
        return cast("Run", made)

    return decorate


# ---- Reading them ----


def load_setup(options: Options, purpose: "Purpose" = "look") -> "Setup":
    """Loads the setup that the options name, and prints its warnings."""
    from clawmode.app.loading import set_up

    setup = set_up(options, purpose)
    for note in setup.notes:
        say(note)
    return setup


def find_gateway(options: Options) -> "RunningGateway | None":
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


def read_thinking(text: str) -> "ThinkingLevel | None":
    """Returns the value of `--thinking`; None if it was not given."""
    from clawmode.models.base import THINKING_LEVELS

    level = next((it for it in THINKING_LEVELS if it == text), None)
    if text and level is None:
        fail(f"--thinking must be one of {', '.join(THINKING_LEVELS)}, got {text!r}", USAGE)
    return level


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
