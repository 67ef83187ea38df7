"""The commands `agent`, `sessions` and `trajectory`: turns of an agent, and their records."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawmode.commands.options import (
    EXIT,
    TOOLS,
    USAGE,
    AgentOption,
    JsonOption,
    ModelOption,
    OnlyReplyOption,
    Options,
    SessionOption,
    ThinkingOption,
    command,
    fail,
    find_gateway,
    load_setup,
    new_app,
    read_source,
    read_thinking,
    takes,
)

if TYPE_CHECKING:
    from clawmode.agent.requests import AgentRequest

sessions_app = new_app("List and show conversations.")
trajectory_app = new_app("Show or export the steps of runs.")

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="The conversation: a key or an id. Default: the main session."
    ),
]
RunOption = Annotated[str, typer.Option("--run", metavar="RUNID", help="Show only this run.")]


@takes(*TOOLS, "agent_approve", "state")
def agent(
    options: Options,
    message: Annotated[
        str, typer.Option("--message", "-m", help="Your message; - reads it from stdin.")
    ] = "",
    session: SessionOption = "",
    agent_id: AgentOption = "",
    model: ModelOption = "",
    thinking: ThinkingOption = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The time limit of the turn.")
    ] = None,
    resume: Annotated[
        str, typer.Option("--continue", metavar="RUNID", help="Resume a run that was interrupted.")
    ] = "",
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Show the prompt and the tools; run nothing.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Run the turn in this process, even if a gateway runs.")
    ] = False,
    as_json: JsonOption = False,
    quiet: OnlyReplyOption = False,
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
        request = make_request(
            session,
            thinking=read_thinking(thinking),
            message=read_source("-") if message == "-" else message,
            agent_id=agent_id,
            run_id=resume,
            resume=bool(resume),
            model=model,
            timeout_seconds=timeout,
        )
        if show_prompt:
            from clawmode.terminal import local_turn

            setup = load_setup(options, "agent")
            local_turn.show_prompt(out, setup, request, as_json=as_json)
            raise typer.Exit
        running = None if local else find_gateway(options)
        # Each imports one of the two: the modules of the other would only cost time.
        if running is None:
            from clawmode.terminal.local_turn import LocalTurn

            turn = LocalTurn(load_setup(options, "agent"))
        else:
            from clawmode.terminal.remote_turn import RemoteTurn

            turn = RemoteTurn(options, running)
        from clawmode.terminal.agent_view import AgentView
        from clawmode.terminal.turn import TerminalTurn

        result = TerminalTurn(
            turn=turn,
            options=options,
            out=out,
            view=AgentView,
            as_json=as_json,
            quiet=quiet,
            stdin_is_taken=message == "-",
        ).run(request)
    raise typer.Exit(EXIT[result.status])


def make_request(session: str, **given: Any) -> "AgentRequest":
    """Makes the request of a turn, or of a conversation, in the session with a key or an id."""
    from clawmode.agent.requests import AgentRequest
    from clawmode.sessions.keys import is_session_id

    by_id = is_session_id(session)
    return AgentRequest(
        session_key="" if by_id else session,
        session_id=session if by_id else "",
        channel="cli",
        **given,
    )


# ---- Sessions ----


@sessions_app.command("list")
def list_sessions(
    options: Options,
    agent_id: Annotated[
        str, typer.Option("--agent", help="List only the conversations of this agent.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most conversations to list.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List conversations, the most recently used first."""
    with command() as out:
        from clawmode.terminal.agent_listings import list_all, print_sessions

        found = list_all(load_setup(options), agent_id, limit)
        if as_json:
            out.json({"sessions": found})
        else:
            print_sessions(out, found)


@sessions_app.command("show")
def show_session(
    options: Options,
    session: SessionArgument = "main",
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the messages and the calls of a conversation."""
    with command() as out:
        from clawmode.terminal.agent_listings import read_session, show

        setup = load_setup(options)
        if as_json:
            out.json(read_session(setup, session, run))
        else:
            show(out, setup, session, run)


# ---- Trajectories ----


@trajectory_app.command("show")
def show_trajectory(
    options: Options, session: SessionArgument = "main", run: RunOption = ""
) -> None:
    """Draw the steps of a session's runs as a tree."""
    with command() as out:
        from clawmode.terminal.agent_listings import show

        show(out, load_setup(options), session, run)


@trajectory_app.command("export")
def export_trajectory(
    options: Options,
    session: SessionArgument = "main",
    name: Annotated[str, typer.Option(help="The name of the new folder.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Export a session's runs, without secrets.

    The files go to a new folder in the agent's workspace.
    """
    with command() as out:
        from clawmode.terminal.agent_listings import export

        made = export(load_setup(options), session, name)
        if as_json:
            out.json(made)
        else:
            out.say(str(made["folder"]))
