"""The commands `agent`, `sessions` and `trajectory`: turns of an agent, and their records."""

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
    load_basic_setup,
    load_setup,
    new_app,
    read_source,
)

if TYPE_CHECKING:
    from clawmode.agent.requests import AgentRequest
    from clawmode.app.setup import Options
    from clawmode.rpc.presence import RunningGateway
    from clawmode.terminal.turn import Turn

EXIT = {"ok": 0, "error": FAILED, "timeout": FAILED, "aborted": STOPPED}
WAITING = 3

sessions_app = new_app("List and show conversations.")
trajectory_app = new_app("Show or export the steps of runs.")

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="The conversation: a key or an id. Default: the main session."
    ),
]
RunOption = Annotated[str, typer.Option("--run", metavar="RUNID", help="Show only this run.")]


def agent(
    message: Annotated[
        str, typer.Option("--message", "-m", help="Your message; - reads it from stdin.")
    ] = "",
    session: Annotated[
        str, typer.Option(help="The conversation: a key or an id. Default: the main session.")
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="The agent. Default: the default agent.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/model, instead of the agent's.")] = "",
    thinking: Annotated[
        str, typer.Option(help="off, minimal, low, medium or high, instead of the agent's.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The time limit of the turn.")
    ] = None,
    resume: Annotated[
        str,
        typer.Option("--continue", metavar="RUNID", help="Resume a run that was interrupted."),
    ] = "",
    show_prompt: Annotated[
        bool,
        typer.Option("--show-prompt", help="Show the prompt and the tools; run nothing."),
    ] = False,
    local: Annotated[
        bool,
        typer.Option("--local", help="Run the turn in this process, even if a gateway runs."),
    ] = False,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")] = False,
) -> None:
    """Run one turn of an agent.

    The reply goes to stdout; stderr shows the calls that the agent makes.

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 waiting, 130 stopped.
    """
    with command() as out:
        if bool(message) is bool(resume) and not show_prompt:
            fail("give either --message (- reads it from stdin) or --continue RUNID", USAGE)
        if timeout is not None and not timeout > 0:
            fail(f"--timeout must be a positive number of seconds, got {timeout:g}", USAGE)
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
        if show_prompt:
            from clawmode.terminal import local_turn

            setup = load_setup(options, "agent")
            local_turn.show_prompt(out, setup, request, as_json=as_json)
            raise typer.Exit
        turn = _turn(options, None if local else find_gateway(options))
        from clawmode.terminal.agent_view import turn_view
        from clawmode.terminal.turn import TerminalTurn

        result = TerminalTurn(
            turn=turn,
            options=options,
            out=out,
            # The view measures the time of the turn, so it is made after the setup.
            view=turn_view(out, as_json=as_json, quiet=quiet),
            approve=approve,
            as_json=as_json,
            stdin_is_taken=message == "-",
        ).run(request)
    raise typer.Exit(WAITING if result is None else EXIT[result.status])


def _request(session: str, thinking: str, **given: Any) -> "AgentRequest":
    from clawmode.agent.requests import AgentRequest
    from clawmode.models.base import THINKING_LEVELS
    from clawmode.sessions.keys import is_session_id

    level = next((it for it in THINKING_LEVELS if it == thinking), None)
    if thinking and level is None:
        fail(f"--thinking must be one of {', '.join(THINKING_LEVELS)}, got {thinking!r}", USAGE)
    by_id = is_session_id(session)
    return AgentRequest(
        session_key="" if by_id else session,
        session_id=session if by_id else "",
        thinking=level,
        channel="cli",
        **given,
    )


def _turn(options: "Options", running: "RunningGateway | None") -> "Turn":
    """Makes the turn: in the gateway that runs, or in this process."""
    # One of the two: the modules of the other would only cost time.
    if running is None:
        from clawmode.terminal.local_turn import LocalTurn

        return LocalTurn(load_setup(options, "agent"))
    from clawmode.app.setup import state_folder
    from clawmode.terminal.remote_turn import RemoteTurn, check_options

    check_options(options, running)
    return RemoteTurn(state_folder(options.state))


# ---- Sessions ----


@sessions_app.command("list")
def list_sessions(
    agent_id: Annotated[
        str, typer.Option("--agent", help="List only the conversations of this agent.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most conversations to list.")] = 50,
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List conversations, the most recently used first."""
    with command() as out:
        from clawmode.terminal.agent_listings import list_all, print_sessions

        found = list_all(load_basic_setup(config, state), agent_id, limit)
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
    """Show the messages and the calls of a conversation."""
    with command() as out:
        from clawmode.terminal.agent_listings import read_session, show

        setup = load_basic_setup(config, state)
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
    """Draw the steps of a session's runs as a tree."""
    with command() as out:
        from clawmode.terminal.agent_listings import show

        show(out, load_basic_setup(config, state), session, run)


@trajectory_app.command("export")
def export_trajectory(
    session: SessionArgument = "main",
    name: Annotated[str, typer.Option(help="The name of the new folder.")] = "",
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a session's runs, without secrets.

    The files go to a new folder in the agent's workspace.
    """
    with command() as out:
        from clawmode.terminal.agent_listings import export

        made = export(load_basic_setup(config, state), session, name)
        if as_json:
            out.json(made)
        else:
            out.say(str(made["folder"]))
