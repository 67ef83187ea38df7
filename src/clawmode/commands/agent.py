"""`agent`, `sessions list|show`, `trajectory export|show`: turns, and what is kept of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawmode.commands.options import (
    FAILED,
    STOPPED,
    USAGE,
    AgentApproveOption,
    ConfigOption,
    JsonOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    ToolsOption,
    command,
    fail,
    find_gateway,
    gather,
    load_setup,
    new_app,
    read_source,
)

if TYPE_CHECKING:
    from clawmode.agent.requests import AgentRequest
    from clawmode.app.console import ProgramOutput
    from clawmode.app.setup import Setup
    from clawmode.rpc.presence import RunningGateway
    from clawmode.terminal.turn import ShownTurn

EXIT = {"ok": 0, "error": FAILED, "timeout": FAILED, "aborted": STOPPED}
WAITING = 3

sessions_app = new_app("Look at conversations.")
trajectory_app = new_app("Look at what runs did, step by step.")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="A key, or an id. Default: the main session.")
]
RunOption = Annotated[str, typer.Option("--run", metavar="RUNID", help="That run alone.")]


def agent(
    message: Annotated[
        str, typer.Option("--message", "-m", help="What you say; - reads it from stdin.")
    ] = "",
    session: Annotated[
        str, typer.Option(help="The conversation: a key, or an id. Default: the main one.")
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="Which agent. Default: the default one.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/model, instead of the agent's.")] = "",
    thinking: Annotated[
        str, typer.Option(help="off, minimal, low, medium or high, instead of the agent's.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long the turn may take.")
    ] = None,
    resume: Annotated[
        str,
        typer.Option("--continue", metavar="RUNID", help="Go on with a run that was interrupted."),
    ] = "",
    show_prompt: Annotated[
        bool,
        typer.Option("--show-prompt", help="Show what the model would be told; run nothing."),
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Run it in this process, even if a gateway runs.")
    ] = False,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the words alone.")] = False,
) -> None:
    """Run one turn of an agent.

    What the agent says goes to stdout, what it does is shown on stderr.

    Exit status: 0 done, 1 failed, 2 usage, 3 waiting, 130 stopped.
    """
    with session_command() as out:
        if bool(message) is bool(resume) and not show_prompt:
            fail("give a --message (- reads it from stdin), or a run to --continue", USAGE)
        if timeout is not None and not timeout > 0:
            fail(f"--timeout takes seconds, more than none, not {timeout:g}", USAGE)
        request = _request(
            session,
            thinking,
            message=read_source("-") if message == "-" else message,
            agent_id=agent_id,
            run_id=resume,
            resume=bool(resume),
            model=model,
            timeout_seconds=timeout,
        )
        options = gather(tools, config, mcp_config, policy, approve, state)
        shown: dict[str, Any] = {"options": options, "out": out, "approve": approve}
        shown |= {"as_json": as_json, "quiet": quiet, "stdin_is_taken": message == "-"}
        place = None if local or show_prompt else find_gateway(options)
        turn = _embedded_turn(shown) if place is None else _remote_turn(place, shown)
        if show_prompt:
            turn.show_prompt(request)
            raise typer.Exit
        result = turn.run(request)
    raise typer.Exit(WAITING if result is None else EXIT[result.status])


def _request(session: str, thinking: str, **given: Any) -> "AgentRequest":
    from clawmode.agent.requests import AgentRequest
    from clawmode.models.base import THINKING_LEVELS
    from clawmode.sessions.keys import is_session_id

    level = next((it for it in THINKING_LEVELS if it == thinking), None)
    if thinking and level is None:
        fail(f"--thinking is one of {', '.join(THINKING_LEVELS)}, not {thinking!r}", USAGE)
    by_id = is_session_id(session)
    return AgentRequest(
        session_key="" if by_id else session,
        session_id=session if by_id else "",
        thinking=level,
        channel="cli",
        **given,
    )


def _embedded_turn(shown: dict[str, Any]) -> "ShownTurn":
    from clawmode.terminal.local_turn import AgentCommand

    return AgentCommand(setup=load_setup(shown["options"], "agent"), **shown)


def _remote_turn(place: "RunningGateway", shown: dict[str, Any]) -> "ShownTurn":
    from clawmode.app.setup import state_folder
    from clawmode.terminal.remote_turn import RemoteTurn, check_options

    options = shown["options"]
    check_options(options, place)
    return RemoteTurn(state=state_folder(options.state), **shown)


# ---- Sessions ----


@sessions_app.command("list")
def list_sessions(
    agent_id: Annotated[str, typer.Option("--agent", help="Of this agent alone.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List conversations, the one that was used last first."""
    with session_command() as out:
        from clawmode.terminal.agent_listings import list_all, print_sessions

        found = list_all(_setup(config, state), agent_id, limit)
        if as_json:
            out.json({"sessions": found})
        else:
            print_sessions(out, found)


@sessions_app.command("show")
def show_session(
    session: SessionArgument = "main",
    run: RunOption = "",
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a conversation: what was said, and the calls that were made."""
    with session_command() as out:
        from clawmode.terminal.agent_listings import read_session, show

        setup = _setup(config, state)
        if as_json:
            out.json(read_session(setup, session, run))
        else:
            show(out, setup, session, run)


# ---- Trajectories ----


@trajectory_app.command("show")
def show_trajectory(
    session: SessionArgument = "main",
    run: RunOption = "",
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Draw what the runs of a session did as a tree."""
    with session_command() as out:
        from clawmode.terminal.agent_listings import show

        show(out, _setup(config, state), session, run)


@trajectory_app.command("export")
def export_trajectory(
    session: SessionArgument = "main",
    name: Annotated[str, typer.Option(help="Of the folder that is made.")] = "",
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a session's runs, without secrets.

    They are written to a folder in the agent's workspace.
    """
    with session_command() as out:
        from clawmode.terminal.agent_listings import export

        made = export(_setup(config, state), session, name)
        if as_json:
            out.json(made)
        else:
            out.say(str(made["folder"]))


def _setup(config: str | None, state: str | None) -> "Setup":
    return load_setup(gather(None, config, None, None, "ask", state))


@contextmanager
def session_command() -> "Iterator[ProgramOutput]":
    """As `command`; and what cannot be a session's name is wrong usage."""
    with command() as out:
        from clawmode.exceptions import ConfigurationError
        from clawmode.sessions.keys import InvalidSession

        try:
            yield out
        except InvalidSession as error:
            raise ConfigurationError(str(error)) from None
