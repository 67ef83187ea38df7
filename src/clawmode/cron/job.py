"""What a job is, as data: read from the configuration, or from what a command has kept."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from clawmode.agent.runtime import MAX_MESSAGE_CHARS
from clawmode.config import resolve as settings
from clawmode.config.agents import Configuration
from clawmode.config.operations import DAY_SECONDS, CronSection
from clawmode.cron.expressions import BadSchedule
from clawmode.cron.schedule import Schedule, read_at, read_cron, read_every, read_zone
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import THINKING_LEVELS, ThinkingLevel
from clawmode.sessions.keys import InvalidSession, check_agent_id
from clawmode.types import JsonObject

MAX_TEXT_CHARS = 500
"""Of a model, a channel, a target."""

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A turn at set times. `check` says whether it can be meant.

    Attributes:
        cron: One of `cron`, `every` and `at` is set.
        tz: The time zone of `cron` and `at`; empty for UTC.
        agent: Empty for the default one.
        timeout_seconds: How long a turn may take; None leaves it to the agent's settings.
        channel: Where the reply goes; empty for nowhere.
        configured: It stands in the configuration, so commands leave it alone.
    """

    id: str
    message: str
    cron: str = ""
    every: str = ""
    at: str = ""
    tz: str = ""
    enabled: bool = True
    agent: str = ""
    model: str = ""
    thinking: ThinkingLevel | None = None
    timeout_seconds: float | None = None
    channel: str = ""
    target: str = ""
    configured: bool = False

    def schedule(self, since: float = 0.0) -> Schedule:
        """When it runs; intervals are counted from `since`.

        Raises:
            BadSchedule: That cannot be meant.
        """
        if self.cron:
            return read_cron(self.cron, self.tz)
        return read_every(self.every, since) if self.every else read_at(self.at, self.tz)

    @property
    def signature(self) -> str:
        """Changes with what its times depend on."""
        return "\n".join((self.cron, self.every, self.at, self.tz, str(self.enabled)))

    def to_json(self) -> JsonObject:
        """As it is kept: what is set."""
        unset = {each.name: each.default for each in fields(self)}
        made = asdict(self)
        made.pop("configured")
        return {name: value for name, value in made.items() if value != unset[name]}

    def described(self) -> JsonObject:
        """As programs see it, in the words of the configuration."""
        made = self.to_json()
        if self.timeout_seconds is not None:
            made["timeoutSeconds"] = made.pop("timeout_seconds")
        return made | {"enabled": self.enabled, "configured": self.configured}


# ---- Checking ----


def check(job: Job) -> Job:
    """The job as it is used, its id in small letters.

    Raises:
        ConfigurationError: It cannot be meant; `path` is the field.
    """
    for error in faults(job):
        raise error
    return replace(job, id=check_id(job.id))


def faults(job: Job) -> Iterator[ConfigurationError]:
    """Everything that is wrong with a job; `path` of an error is the field."""
    try:
        check_id(job.id)
    except ConfigurationError as error:
        yield error
    yield from _wrong_times(job)
    if not job.message.strip():
        yield _wrong("message", "the message is empty")
    if len(job.message) > MAX_MESSAGE_CHARS:
        yield _wrong("message", f"the message is over {MAX_MESSAGE_CHARS} characters")
    if job.target and not job.channel:
        yield _wrong("target", "a target needs a channel")
    yield from _wrong_manner(job)


def check_named(configuration: Configuration, job: Job) -> None:
    """Checks that what a job names is in the configuration.

    Raises:
        ConfigurationError: Its agent or channel is not there; `path` is the field.
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
        yield _wrong("", f"one of cron, every and at has to be set, found {found}")
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
    """The id of a job as it is kept: it is part of session keys.

    Raises:
        ConfigurationError: It can be none.
    """
    if job_id.isascii() and _ID.fullmatch(job_id.lower()):
        return job_id.lower()
    raise _wrong(
        "id",
        f"{job_id[:80]!r} is no id of a job: that is up to 64 letters, digits, `_` and `-`, with a "
        "letter or a digit first",
    )


def _wrong_manner(job: Job) -> Iterator[ConfigurationError]:
    """What is wrong with who runs, how, and who gets the reply."""
    if job.agent:
        try:
            check_agent_id(job.agent)
        except InvalidSession as error:
            yield _wrong("agent", str(error))
    if job.thinking is not None and job.thinking not in THINKING_LEVELS:
        yield _wrong("thinking", f"{job.thinking!r} is none of {', '.join(THINKING_LEVELS)}")
    if job.timeout_seconds is not None and not 0 < job.timeout_seconds <= DAY_SECONDS:
        yield _wrong(
            "timeoutSeconds", f"{job.timeout_seconds:g} is not more than 0 and up to {DAY_SECONDS}"
        )
    for name in ("model", "channel", "target"):
        if len(getattr(job, name)) > MAX_TEXT_CHARS:
            yield _wrong(name, f"that is over {MAX_TEXT_CHARS} characters")


def _wrong(field: str, message: str) -> ConfigurationError:
    return ConfigurationError(message, path=field)


# ---- Where they come from ----


def configured_jobs(section: CronSection) -> tuple[Job, ...]:
    """The jobs of a configuration.

    Raises:
        ConfigurationError: One of them cannot be meant, or an id stands there twice.
    """
    jobs, errors = read_jobs(section)
    for error in errors:
        raise error
    return jobs


def read_jobs(section: CronSection) -> tuple[tuple[Job, ...], list[ConfigurationError]]:
    """The jobs of a configuration that can be used, and every error in the others."""
    made: dict[str, Job] = {}
    errors: list[ConfigurationError] = []
    seen: set[str] = set()
    for index, each in enumerate(section.jobs):
        place = f"cron.jobs[{index}]"
        said = {name.name: getattr(each, name.name) for name in fields(each)}
        given = {name: value for name, value in said.items() if value is not None}
        job = Job(**given, configured=True)
        found = list(faults(job))
        for error in found:
            path = f"{place}.{error.path}" if error.path else place
            errors.append(ConfigurationError(f"{path}: {error}", path=path))
        if job.id.lower() in seen:
            path = f"{place}.id"
            errors.append(
                ConfigurationError(f"{path}: there is a job {job.id!r} already", path=path)
            )
        elif not found:
            job = check(job)
            made[job.id] = job
        seen.add(job.id.lower())
    return tuple(made.values()), errors


_KINDS: dict[str, type | tuple[type, ...]] = {
    **{each.name: str for each in fields(Job) if each.name != "configured"},
    "enabled": bool,
    "timeout_seconds": (int, float),
}


def kept_job(job_id: str, data: Any) -> Job:
    """A job as it was kept.

    Raises:
        ConfigurationError: It is none: another version wrote it, or somebody's hand.
    """
    if not isinstance(data, dict) or data.get("id") != job_id:
        raise ConfigurationError("that is no job")
    given: dict[str, Any] = {"message": "", **data}
    for name, value in given.items():
        if not isinstance(value, _KINDS.get(name, ())):
            raise ConfigurationError(f"{name[:80]!r} is no field of a job, or not such a value")
    return check(Job(**given))
