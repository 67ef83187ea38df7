"""The commands of `cron`: jobs, which are turns at set times."""

from typing import TYPE_CHECKING, Annotated

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
    ThinkingOption,
    command,
    fail,
    find_gateway,
    load_setup,
    new_app,
    read_source,
    read_thinking,
    say,
    takes,
)

if TYPE_CHECKING:
    from clawmode.app.setup import Setup


app = new_app("List, add, switch, run and remove jobs.")

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The name of the job.")]


@app.command("list")
def list_jobs(options: Options, as_json: JsonOption = False) -> None:
    """List jobs with their next time and their last run."""
    with command() as out:
        import anyio

        from clawmode.terminal.cron_turn import open_jobs, print_jobs

        setup = load_setup(options)
        found = anyio.run(open_jobs(setup).list)
        if as_json:
            out.json({"jobs": [status.described() for status in found]})
        else:
            print_jobs(out, setup, found)


@app.command("add")
def add_job(
    options: Options,
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
    agent_id: AgentOption = "",
    model: ModelOption = "",
    thinking: ThinkingOption = "",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The time limit of a turn.")
    ] = None,
    channel: Annotated[str, typer.Option(help="The channel that the reply goes to.")] = "",
    target: Annotated[str, typer.Option(help="The recipient on that channel.")] = "",
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Run the job only with `cron run`.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a job: a turn of an agent at set times.

    Each turn has a session of its own.
    """
    with command() as out:
        import anyio

        from clawmode.cron.job import Job, check_named
        from clawmode.cron.schedule import in_words
        from clawmode.terminal.cron_turn import next_time, open_jobs

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
            thinking=read_thinking(thinking),
            timeout_seconds=timeout,
            channel=channel,
            target=target,
        )
        setup = load_setup(options)
        check_named(setup.configuration, job)
        added = anyio.run(open_jobs(setup).add, job)
        if as_json:
            out.json(added.described())
        else:
            out.say(f"{added.job.id}: {in_words(job.schedule())}; next: {next_time(added)}")
        _warn_if_idle(setup, options)


@app.command("enable")
def enable_job(options: Options, job_id: JobArgument) -> None:
    """Let a disabled job run at its times again."""
    _switch(options, job_id, enabled=True)


@app.command("disable")
def disable_job(options: Options, job_id: JobArgument) -> None:
    """Keep a job from running at its times.

    `cron run` still runs the job.
    """
    _switch(options, job_id, enabled=False)


def _switch(options: Options, job_id: str, *, enabled: bool) -> None:
    with command() as out:
        import anyio

        from clawmode.terminal.cron_turn import next_time, open_jobs

        setup = load_setup(options)
        changed = anyio.run(open_jobs(setup).enable, job_id, enabled)
        out.say(f"{changed.job.id}: next: {next_time(changed)}")
        if enabled:
            _warn_if_idle(setup, options)


def _warn_if_idle(setup: "Setup", options: Options) -> None:
    """Prints why no job runs at its times now, if that is so."""
    if not setup.configuration.cron.enabled:
        say("cron.enabled is false, so no job runs at its times")
    elif find_gateway(options) is None:
        say("no gateway runs on this state folder: start one with clawmode gateway to run the job")


@app.command("remove")
def remove_job(options: Options, job_id: JobArgument) -> None:
    """Remove a job that was added, and the records of its runs. Its sessions are kept."""
    with command() as out:
        import anyio

        from clawmode.terminal.cron_turn import open_jobs

        anyio.run(open_jobs(load_setup(options)).remove, job_id)
        out.say(f"removed: {job_id}")


@app.command("run")
@takes(*TOOLS, "agent_approve", "state")
def run_job(
    options: Options,
    job_id: JobArgument,
    as_json: JsonOption = False,
    quiet: OnlyReplyOption = False,
) -> None:
    """Run a job now, whatever its times are.

    The output is that of `agent`.

    Exit status: 0 done, 1 failed or already running, 2 wrong usage, 130 stopped.
    """
    with command() as out:
        from clawmode.terminal.agent_view import AgentView
        from clawmode.terminal.cron_turn import JobTurn
        from clawmode.terminal.turn import TerminalTurn

        turn = JobTurn(load_setup(options, "agent"), job_id)
        result = TerminalTurn(
            turn=turn,
            options=options,
            out=out,
            view=AgentView,
            as_json=as_json,
            quiet=quiet,
        ).run(turn.request())
    raise typer.Exit(EXIT[result.status])
