"""`Job`: its fields, their checks, and reading jobs from the configuration or the jobs file."""

import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

from pydantic import ConfigDict

from clawmode.agent.requests import MAX_MESSAGE_CHARS
from clawmode.config import resolve as settings
from clawmode.config.agents import Configuration
from clawmode.config.operations import DAY_SECONDS, CronSection
from clawmode.cron.schedule import BadSchedule, Schedule, read_at, read_cron, read_every, read_zone
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import THINKING_LEVELS, ThinkingLevel
from clawmode.records import Flag, Number, parse
from clawmode.sessions.keys import InvalidSession, check_agent_id
from clawmode.types import JsonObject, dataclass

MAX_TEXT_CHARS = 500
"""The longest model, channel or target."""

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An agent turn on a schedule. `check` validates the fields.

    Attributes:
        cron: Exactly one of `cron`, `every` and `at` is set.
        tz: The time zone of `cron` and `at`; empty for UTC.
        agent: Empty for the default agent.
        timeout_seconds: The time limit of a turn; None uses the limit of the agent.
        channel: The channel that gets the reply; empty for none.
        configured: The job comes from the configuration, so commands cannot change it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: str
    message: str
    cron: str = ""
    every: str = ""
    at: str = ""
    tz: str = ""
    enabled: Flag = True
    agent: str = ""
    model: str = ""
    thinking: ThinkingLevel | None = None
    timeout_seconds: Number | None = None
    channel: str = ""
    target: str = ""
    configured: bool = False

    def schedule(self, since: float = 0.0) -> Schedule:
        """Returns the parsed schedule; intervals are counted from `since`.

        Raises:
            BadSchedule: The schedule is not valid.
        """
        if self.cron:
            return read_cron(self.cron, self.tz)
        return read_every(self.every, since) if self.every else read_at(self.at, self.tz)

    @property
    def signature(self) -> str:
        """Everything that decides when the job runs, for comparison."""
        return "\n".join((self.cron, self.every, self.at, self.tz, str(self.enabled)))

    def to_json(self) -> JsonObject:
        """Returns the fields that differ from their defaults, as they are stored."""
        unset = {each.name: each.default for each in fields(self)}
        made = asdict(self)
        made.pop("configured")
        return {name: value for name, value in made.items() if value != unset[name]}

    def described(self) -> JsonObject:
        """Returns the job for `--json` and the gateway, with the keys of the configuration."""
        made = self.to_json()
        if self.timeout_seconds is not None:
            made["timeoutSeconds"] = made.pop("timeout_seconds")
        return made | {"enabled": self.enabled, "configured": self.configured}


# ---- Checking ----


def check(job: Job) -> Job:
    """Returns the validated job, with its id in lower case.

    Raises:
        ConfigurationError: A field is not valid; `path` names it.
    """
    for error in faults(job):
        raise error
    return replace(job, id=check_id(job.id))


def faults(job: Job) -> Iterator[ConfigurationError]:
    """Yields an error for each field that is not valid; `path` names the field."""
    try:
        check_id(job.id)
    except ConfigurationError as error:
        yield error
    yield from _wrong_times(job)
    if not job.message.strip():
        yield _wrong("message", "the message must not be empty")
    if len(job.message) > MAX_MESSAGE_CHARS:
        yield _wrong("message", f"the message must have at most {MAX_MESSAGE_CHARS} characters")
    if job.target and not job.channel:
        yield _wrong("target", "`channel` is required when `target` is set")
    yield from _wrong_options(job)


def check_named(configuration: Configuration, job: Job) -> None:
    """Checks that the agent and the channel of a job are configured.

    Raises:
        ConfigurationError: One of them is not; `path` names the field.
    """
    if job.agent:
        try:
            settings.agent(configuration, job.agent)
        except ConfigurationError as error:
            raise _wrong("agent", str(error)) from None
    if job.channel and job.channel not in configuration.channels:
        known = ", ".join(configuration.channels) or "none"
        text = f"there is no channel {job.channel!r}; the configuration has: {known}"
        raise _wrong("channel", text)


def _wrong_times(job: Job) -> Iterator[ConfigurationError]:
    times = [name for name in ("cron", "every", "at") if getattr(job, name)]
    if len(times) != 1:
        found = " and ".join(times) or "none"
        yield _wrong("", f"exactly one of cron, every and at must be set, found {found}")
    zoned = True
    try:
        read_zone(job.tz)
    except BadSchedule as error:
        zoned = False
        yield _wrong("tz", str(error))
    for name in times:
        alone = Job(id=job.id, message=job.message, tz=job.tz if zoned else "")
        try:
            replace(alone, **{name: getattr(job, name)}).schedule()
        except BadSchedule as error:
            yield _wrong(name, str(error))


def check_id(job_id: str) -> str:
    """Returns the id in lower case, as it is stored and used in session keys.

    Raises:
        ConfigurationError: The text cannot be an id.
    """
    if job_id.isascii() and _ID.fullmatch(job_id.lower()):
        return job_id.lower()
    raise _wrong(
        "id",
        f"{job_id[:80]!r} is not a job id; expected up to 64 letters, digits, `_` and `-`, "
        "beginning with a letter or a digit",
    )


def _wrong_options(job: Job) -> Iterator[ConfigurationError]:
    if job.agent:
        try:
            check_agent_id(job.agent)
        except InvalidSession as error:
            yield _wrong("agent", str(error))
    if job.thinking is not None and job.thinking not in THINKING_LEVELS:
        yield _wrong("thinking", f"{job.thinking!r} is not one of {', '.join(THINKING_LEVELS)}")
    if job.timeout_seconds is not None and not 0 < job.timeout_seconds <= DAY_SECONDS:
        yield _wrong(
            "timeoutSeconds",
            f"must be more than 0 and at most {DAY_SECONDS}, got {job.timeout_seconds:g}",
        )
    for name in ("model", "channel", "target"):
        if len(getattr(job, name)) > MAX_TEXT_CHARS:
            yield _wrong(name, f"must have at most {MAX_TEXT_CHARS} characters")


def _wrong(field: str, message: str) -> ConfigurationError:
    return ConfigurationError(message, path=field)


# ---- Where they come from ----


def configured_jobs(section: CronSection) -> tuple[Job, ...]:
    """Returns the jobs of the configuration.

    Raises:
        ConfigurationError: A job is not valid, or two jobs have the same id.
    """
    jobs, errors = read_jobs(section)
    for error in errors:
        raise error
    return jobs


def read_jobs(section: CronSection) -> tuple[tuple[Job, ...], list[ConfigurationError]]:
    """Returns the valid jobs of the configuration, and the errors of the others."""
    made: dict[str, Job] = {}
    errors: list[ConfigurationError] = []
    seen: set[str] = set()
    for index, each in enumerate(section.jobs):
        place = f"cron.jobs[{index}]"
        given = {name: value for name, value in each if value is not None}
        job = Job(**given, configured=True)
        found = list(faults(job))
        for error in found:
            path = f"{place}.{error.path}" if error.path else place
            errors.append(ConfigurationError(f"{path}: {error}", path=path))
        if job.id.lower() in seen:
            path = f"{place}.id"
            errors.append(
                ConfigurationError(f"{path}: another job has the id {job.id!r}", path=path)
            )
        elif not found:
            job = check(job)
            made[job.id] = job
        seen.add(job.id.lower())
    return tuple(made.values()), errors


def stored_job(job_id: str, data: Any) -> Job:
    """Reads a job from the jobs file.

    Raises:
        ConfigurationError: The data is not a job: another version wrote it, or a person edited it.
    """
    if not isinstance(data, dict) or data.get("id") != job_id or "configured" in data:
        raise ConfigurationError("the stored data is not a job")
    return check(parse(Job, {"message": "", **data}))
