"""Another configuration, without a restart: read, checked, and put in the place of the old one.

Runs that are under way keep what they began with. What has an address, a process or a plugin's code
behind it needs a restart, and stays as it was until then.
"""

import logging
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from clawmode.app import loading
from clawmode.app.host import Host
from clawmode.app.protected_paths import protected_paths
from clawmode.app.secrets import known_secrets, withheld
from clawmode.config import resolve as settings
from clawmode.config.file import Problem, Report
from clawmode.config.reader import members
from clawmode.config.resolve import Configuration
from clawmode.cron.job import Job, configured_jobs
from clawmode.gateway import logs
from clawmode.gateway.gateway import Gateway
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

NEEDS_RESTART = ("gateway", "channels", "plugins", "mcp", "mcpServers", "hooks")
"""Sections that hold from the next start on."""

FIXED = ("agents.defaults.maxConcurrent", "cron.enabled", "diagnostics.enabled")
"""The same of single settings, in sections that are applied."""


@dataclass(frozen=True, slots=True)
class CheckedConfiguration:
    """A configuration, and what is wrong with it; then it is not to be used."""

    configuration: Configuration
    jobs: tuple[Job, ...]
    report: Report

    @property
    def issues(self) -> list[JsonValue]:
        """The errors, for clients."""
        return [self._told(problem) for problem in self.report.errors]

    @property
    def warnings(self) -> list[JsonValue]:
        """What is worth a look, for clients."""
        return [self._told(problem) for problem in self.report.warnings]

    def _told(self, problem: Problem) -> JsonObject:
        what = (problem.what or problem.text).removeprefix(f"{self.report.path}: ")
        return {
            "path": problem.path,
            "line": problem.line,
            "column": problem.column,
            "message": what,
            "expected": problem.expected,
        }


def examine(path: Path | None, host: Host, *, found_here: bool = False) -> CheckedConfiguration:
    """Looks at a configuration file as `config check` does. Does not raise."""
    configuration, report = loading.read(path, host.setup.state, host.models, found_here=found_here)
    jobs = () if report.errors else configured_jobs(configuration.cron)
    return CheckedConfiguration(configuration, jobs, report)


def refuse(found: CheckedConfiguration, field: str = "") -> RpcError:
    """What is said of a configuration with errors."""
    errors = found.report.errors
    many = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    text = f"the configuration has {many}, and nothing was changed"
    report = list[JsonValue]([problem.text for problem in errors])
    details: JsonObject = {"issues": found.issues, "report": report}
    return RpcError("INVALID_REQUEST", text, field=field, details=details)


async def reload(gateway: Gateway) -> JsonObject:
    """Reads the configuration file again, and applies what can be applied.

    Raises:
        RpcError: It has errors; nothing was changed.
    """
    host = gateway.host
    look = partial(examine, host.setup.file, host, found_here=host.setup.found_here)
    found = await anyio.to_thread.run_sync(look)
    if found.report.errors:
        raise refuse(found)
    before, wanted = host.setup.configuration, found.configuration
    used = _usable(before, wanted)
    keys = [key for key in members(Configuration) if key != "$schema"]
    applied = [key for key in keys if _of(before, key) != _of(used, key)]
    waiting = [key for key in (*NEEDS_RESTART, *FIXED) if _of(used, key) != _of(wanted, key)]
    _apply(gateway, used, found.jobs)
    logger.info("the configuration was read again: %s", summary(applied, waiting))
    for problem in found.report.warnings:
        logger.warning("%s", problem.text)
    return {
        "applied": list[JsonValue](applied),
        "needsRestart": list[JsonValue](waiting),
        "warnings": found.warnings,
    }


def summary(applied: list[str], waiting: list[str]) -> str:
    """What a reload has changed, in words."""
    said = [f"changed: {', '.join(applied)}"] if applied else []
    said += [f"waits for a restart: {', '.join(waiting)}"] if waiting else []
    return "; ".join(said) or "nothing has changed"


def _usable(before: Configuration, wanted: Configuration) -> Configuration:
    """What is wanted, but for what cannot be had without a restart."""
    names = [members(Configuration)[key].name for key in NEEDS_RESTART]
    kept: dict[str, Any] = {name: getattr(before, name) for name in names}
    runs = before.agents.defaults.max_concurrent
    defaults = replace(wanted.agents.defaults, max_concurrent=runs)
    return replace(
        wanted,
        **kept,
        agents=replace(wanted.agents, defaults=defaults),
        cron=replace(wanted.cron, enabled=before.cron.enabled),
        diagnostics=replace(wanted.diagnostics, enabled=before.diagnostics.enabled),
    )


def _apply(gateway: Gateway, used: Configuration, jobs: tuple[Job, ...]) -> None:
    """All at once: nobody sees a half of it."""
    host = gateway.host
    setup = replace(host.setup, configuration=used)
    secrets = dict.fromkeys((*known_secrets(host.setup), *known_secrets(setup)))
    logs.learn(secrets)
    host.runtime.learn(secrets)
    host.models.change(used)
    host.resolver.change(used)
    gateway.approvals.mode = partial(settings.approve_mode, used)
    protected = dict.fromkeys((*protected_paths(host.setup), *protected_paths(setup)))
    host.own.change(used, withheld(host.setup) | withheld(setup), tuple(protected))
    host.inbox.change(used.messages.queue, settings.default_agent(used))
    gateway.jobs.configured = {job.id: job for job in jobs}
    cron = used.cron
    gateway.scheduler.change(
        max_concurrent=cron.max_concurrent_runs, cleanup_seconds=cron.cleanup_seconds
    )
    if gateway.watch is not None:
        gateway.watch.change(used.diagnostics)
    gateway.host = replace(host, setup=setup)


def _of(configuration: Configuration, path: str) -> Any:
    """What stands at a path of the file, as it was read."""
    found: Any = configuration
    for key in path.split("."):
        found = getattr(found, members(type(found))[key].name)
    return found


async def reload_at_signal(gateway: Gateway) -> None:
    """Reloads at every SIGHUP, until it is cancelled."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                await reload(gateway)
            except RpcError as error:
                logger.error("SIGHUP: %s", error)
                report: Any = error.details.get("report", [])
                for line in report:
                    logger.error("%s", line)
