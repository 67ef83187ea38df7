"""The commands of `cron`: jobs, which are turns at set times."""

from typing import TYPE_CHECKING, Annotated

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
    say,
)

if TYPE_CHECKING:
    from clawmode.app.setup import Setup

EXIT = {"ok": 0, "error": FAILED, "timeout": FAILED, "aborted": STOPPED}

app = new_app("List, add, switch, run and remove jobs.")

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The name of the job.")]


@app.command("list")
def list_jobs(
    config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """List jobs with their next time and their last run."""
    with command() as out:
        from clawmode.terminal.cron_turn import list_all, print_jobs

        setup = load_basic_setup(config, state)
        if as_json:
            out.json({"jobs": list_all(setup)})
        else:
            print_jobs(out, setup)


@app.command("add")
def add_job(
    job_id: JobArgument,
    cron: Annotated[
        str,
        typer.Option(
            metavar="FIELDS",
            help="Run at set times: minute, hour, day, month, weekday; or @daily and similar.",
        ),
    ] = "",
    every: Annotated[
        str,
        typer.Option(metavar="INTERVAL", help="Run at an interval, such as 30s, 15m, 2h or 1d."),
    ] = "",
    at: Annotated[
        str, typer.Option(metavar="TIME", help="Run once, such as at 2027-01-31T08:00.")
    ] = "",
    tz: Annotated[
        str,
        typer.Option(metavar="ZONE", help="The time zone, such as Europe/Berlin. Default: UTC."),
    ] = "",
    message: Annotated[
        str,
        typer.Option("--message", "-m", help="The message to the agent; - reads it from stdin."),
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="The agent. Default: the default agent.")
    ] = "",
    model: Annotated[str, typer.Option(help="provider/model, instead of the agent's.")] = "",
    thinking: Annotated[
        str, typer.Option(help="off, minimal, low, medium or high, instead of the agent's.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The time limit of a turn.")
    ] = None,
    channel: Annotated[str, typer.Option(help="The channel that the reply goes to.")] = "",
    target: Annotated[str, typer.Option(help="The recipient on that channel.")] = "",
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Run the job only with `cron run`.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job: a turn of an agent at set times.

    Each turn has a session of its own.
    """
    with command() as out:
        from clawmode.cron.job import Job
        from clawmode.cron.schedule import in_words
        from clawmode.models.base import THINKING_LEVELS
        from clawmode.terminal.cron_turn import add, next_time

        level = next((it for it in THINKING_LEVELS if it == thinking), None)
        if thinking and level is None:
            fail(f"--thinking must be one of {', '.join(THINKING_LEVELS)}, got {thinking!r}", USAGE)
        if not message:
            fail("--message is required (- reads it from stdin)", USAGE)
        job = Job(
            id=job_id,
            message=read_source("-") if message == "-" else message,
            cron=cron,
            every=every,
            at=at,
            tz=tz,
            enabled=not disabled,
            agent=agent_id,
            model=model,
            thinking=level,
            timeout_seconds=timeout,
            channel=channel,
            target=target,
        )
        setup = load_basic_setup(config, state)
        added = add(setup, job)
        if as_json:
            out.json(added.described())
        else:
            out.say(f"{added.job.id}: {in_words(job.schedule())}; next: {next_time(added)}")
        _warn_if_idle(setup, state)


@app.command("enable")
def enable_job(job_id: JobArgument, config: ConfigOption = None, state: StateOption = None) -> None:
    """Let a disabled job run at its times again."""
    _switch(job_id, config, state, enabled=True)


@app.command("disable")
def disable_job(
    job_id: JobArgument, config: ConfigOption = None, state: StateOption = None
) -> None:
    """Keep a job from running at its times.

    `cron run` still runs the job.
    """
    _switch(job_id, config, state, enabled=False)


def _switch(job_id: str, config: str | None, state: str | None, *, enabled: bool) -> None:
    with command() as out:
        from clawmode.terminal.cron_turn import enable, next_time

        setup = load_basic_setup(config, state)
        changed = enable(setup, job_id, enabled)
        out.say(f"{changed.job.id}: next: {next_time(changed)}")
        if enabled:
            _warn_if_idle(setup, state)


def _warn_if_idle(setup: "Setup", state: str | None) -> None:
    """Prints why no job runs at its times now, if that is so."""
    if not setup.configuration.cron.enabled:
        say("cron.enabled is false, so no job runs at its times")
    elif find_gateway(gather(None, None, None, None, "ask", state)) is None:
        say("no gateway runs on this state folder: start one with clawmode gateway to run the job")


@app.command("remove")
def remove_job(job_id: JobArgument, config: ConfigOption = None, state: StateOption = None) -> None:
    """Remove a job that was added, and the records of its runs. Its sessions are kept."""
    with command():
        from clawmode.terminal.cron_turn import remove

        remove(load_basic_setup(config, state), job_id)


@app.command("run")
def run_job(
    job_id: JobArgument,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")] = False,
) -> None:
    """Run a job now, whatever its times are.

    The output is that of `agent`.

    Exit status: 0 done, 1 failed or already running, 2 wrong usage, 130 stopped.
    """
    with command() as out:
        from clawmode.terminal.agent_view import turn_view
        from clawmode.terminal.cron_turn import JobTurn
        from clawmode.terminal.turn import TerminalTurn

        options = gather(tools, config, mcp_config, policy, approve, state)
        turn = JobTurn(load_setup(options, "agent"), job_id)
        result = TerminalTurn(
            turn=turn,
            options=options,
            out=out,
            view=turn_view(out, as_json=as_json, quiet=quiet),
            approve=approve,
            as_json=as_json,
        ).run(turn.request())
        assert result is not None, "a run of a job is never left waiting"
    raise typer.Exit(EXIT[result.status])
