"""Reloading the configuration without a restart: read, checked, applied.

Runs that have started keep their old settings. Sections with an address, a process or code of a
plugin behind them need a restart, and keep their old values until then.
"""

import logging
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from clawmode.app import loading
from clawmode.app.protected_paths import protected_paths
from clawmode.app.secrets import known_secrets, withheld
from clawmode.config import resolve as settings
from clawmode.config.file import Problem, Report
from clawmode.config.resolve import Configuration
from clawmode.cron.job import Job, configured_jobs
from clawmode.rpc.protocol import RpcError
from clawmode.sections import keys_of
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.app.host import Host
    from clawmode.gateway.gateway import Gateway

logger = logging.getLogger("clawmode.gateway")

NEEDS_RESTART = ("gateway", "channels", "plugins", "mcp", "mcpServers", "hooks")
"""Sections that are applied at the next start."""

FIXED = ("agents.defaults.maxConcurrent", "cron.enabled", "diagnostics.enabled")
"""Single settings of other sections that are applied at the next start."""


@dataclass(frozen=True, slots=True)
class CheckedConfiguration:
    """A configuration and its report. With errors, the configuration must not be used."""

    configuration: Configuration
    jobs: tuple[Job, ...]
    report: Report

    @property
    def issues(self) -> list[JsonValue]:
        """The errors as JSON for clients."""
        return [self._describe(problem) for problem in self.report.errors]

    @property
    def warnings(self) -> list[JsonValue]:
        """The warnings as JSON for clients."""
        return [self._describe(problem) for problem in self.report.warnings]

    def error(self, field: str = "") -> RpcError:
        """Returns the error response for a configuration that was rejected.

        Args:
            field: The parameter with the configuration; empty if it was read from the file.
        """
        errors = self.report.errors
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        text = f"the configuration has {count}; nothing was changed"
        report = list[JsonValue]([problem.text for problem in errors])
        details: JsonObject = {"issues": self.issues, "report": report}
        return RpcError("INVALID_REQUEST", text, field=field, details=details)

    def _describe(self, problem: Problem) -> JsonObject:
        what = (problem.what or problem.text).removeprefix(f"{self.report.path}: ")
        return {
            "path": problem.path,
            "line": problem.line,
            "column": problem.column,
            "message": what,
            "expected": problem.expected,
        }


def check(path: Path | None, host: "Host", *, found_here: bool = False) -> CheckedConfiguration:
    """Checks a configuration file as `config check` does. Does not raise."""
    configuration, report = loading.read(path, host.setup.state, host.models, found_here=found_here)
    jobs = () if report.errors else configured_jobs(configuration.cron)
    return CheckedConfiguration(configuration, jobs, report)


async def reload(gateway: "Gateway") -> JsonObject:
    """Reads the configuration file again, and applies the settings that need no restart.

    Raises:
        RpcError: The configuration has errors; nothing was changed.
    """
    host = gateway.host
    checked = await anyio.to_thread.run_sync(
        partial(check, host.setup.file, host, found_here=host.setup.found_here)
    )
    if checked.report.errors:
        raise checked.error()
    before, wanted = host.setup.configuration, checked.configuration
    used = _without_restart(before, wanted)
    keys = [key for key in keys_of(Configuration) if key != "$schema"]
    applied = [key for key in keys if _value(before, key) != _value(used, key)]
    waiting = [key for key in (*NEEDS_RESTART, *FIXED) if _value(used, key) != _value(wanted, key)]
    _apply(gateway, used, checked.jobs)
    logger.info("the configuration was reloaded: %s", summary(applied, waiting))
    for problem in checked.report.warnings:
        logger.warning("%s", problem.text)
    return {
        "applied": list[JsonValue](applied),
        "needsRestart": list[JsonValue](waiting),
        "warnings": checked.warnings,
    }


def summary(applied: list[str], waiting: list[str]) -> str:
    """Returns a sentence about what a reload has changed."""
    parts = [f"changed: {', '.join(applied)}"] if applied else []
    parts += [f"needs a restart: {', '.join(waiting)}"] if waiting else []
    return "; ".join(parts) or "nothing has changed"


def _without_restart(before: Configuration, wanted: Configuration) -> Configuration:
    """Returns `wanted` with the old values of everything that needs a restart."""
    names = [keys_of(Configuration)[key] for key in NEEDS_RESTART]
    kept: dict[str, Any] = {name: getattr(before, name) for name in names}
    runs = before.agents.defaults.max_concurrent
    defaults = wanted.agents.defaults.model_copy(update={"max_concurrent": runs})
    kept["agents"] = wanted.agents.model_copy(update={"defaults": defaults})
    for name in ("cron", "diagnostics"):
        enabled = getattr(before, name).enabled
        kept[name] = getattr(wanted, name).model_copy(update={"enabled": enabled})
    return wanted.model_copy(update=kept)


def _apply(gateway: "Gateway", used: Configuration, jobs: tuple[Job, ...]) -> None:
    """Applies a configuration. Awaits nothing, so that no other task sees one half of it."""
    host = gateway.host
    setup = replace(host.setup, configuration=used)
    # Old secrets stay redacted, and old paths protected: runs with the old settings go on.
    gateway.learn_secrets(dict.fromkeys((*known_secrets(host.setup), *known_secrets(setup))))
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


def _value(configuration: Configuration, path: str) -> Any:
    """Returns the value at a path of the configuration file, such as `cron.enabled`."""
    value: Any = configuration
    for key in path.split("."):
        value = getattr(value, keys_of(type(value))[key])
    return value


async def reload_at_signal(gateway: "Gateway") -> None:
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
