"""`clawmode doctor`: whether everything that programs need is there, and if not, what to do."""

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio

from clawmode import command_setup
from clawmode.code_mode import CodeMode
from clawmode.command_setup import Options, Setup
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.gateway import place
from clawmode.mcp.client import ServerView
from clawmode.mcp.command import log_file, open_servers
from clawmode.plugins.setup import describe_plugins
from clawmode.policy import Policy
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool
from clawmode.sqlite_store import SqliteStore
from clawmode.stores import MemoryStore
from clawmode.vectors import MissingExtra, choose_ranker

Health: TypeAlias = Literal["ok", "note", "problem"]

CELLS = {"javascript": "return 1 + 1", "typescript": "const n: number = 2; return n"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, and how it is."""

    what: str
    health: Health
    detail: str


def examine(options: Options) -> list[Finding]:
    """Looks at everything; does not raise."""
    return anyio.run(_collect, options)


async def _collect(options: Options) -> list[Finding]:
    found = [finding async for finding in _runtime()]
    found += _search()
    try:
        setup = command_setup.set_up(options)
    except ConfigurationError as error:
        return [*found, Finding("configuration", "problem", str(error))]
    found += _configuration(options, setup)
    found.append(await _store(setup))
    found += [finding async for finding in _servers(setup)]
    found += _plugins(setup)
    found.append(_gateway(setup))
    return found


async def _runtime() -> AsyncIterator[Finding]:
    async with Pool(size=1) as pool, CodeMode(pool=pool, store=MemoryStore()) as code_mode:
        for language, source in CELLS.items():
            began = time.monotonic()
            result = await code_mode.exec(source, language)
            if result.value == 2:
                took = f"a cell ran in {(time.monotonic() - began) * 1000:.0f} ms"
                yield Finding(language, "ok", took)
            else:
                yield Finding(language, "problem", result.error or "a cell gave a wrong value")
        yield await anyio.to_thread.run_sync(_machine_code)
        notes = pool.lockdown_notes()
        yield Finding("lockdown", "note" if notes else "ok", "; ".join(notes) or "complete")


def _machine_code() -> Finding:
    folder = artifacts.cache_folder()
    try:
        if all(artifacts.is_cached(part) for part in ("quickjs", "swc")):
            return Finding("machine code", "ok", f"kept in {folder}")
    except ClawmodeError as error:
        return Finding("machine code", "problem", str(error))
    detail = f"cannot be kept in {folder}, so every process prepares its own"
    return Finding("machine code", "note", f"{detail}; {artifacts.CACHE_ADVICE}")


def _search() -> Iterator[Finding]:
    try:
        choose_ranker(required=True)
        yield Finding("search", "ok", "by words and by meaning")
    except MissingExtra as error:
        yield Finding("search", "note", f"by words alone: {error}")


def _configuration(options: Options, setup: Setup) -> Iterator[Finding]:
    report = command_setup.check(options.config)
    told = [problem.text for problem in report.warnings] + setup.notes
    where = "none: everything has its default" if report.path is None else str(report.path)
    yield Finding("configuration", "ok", where)
    yield from (Finding("configuration", "note", text) for text in dict.fromkeys(told))
    shown = len(setup.policy.effective(setup.tools))
    yield Finding("tools", "ok", f"{shown} of {len(setup.tools)} Python tools are allowed")


async def _store(setup: Setup) -> Finding:
    try:
        store = SqliteStore(setup.state)
        await store.leave(await store.join())
        await anyio.to_thread.run_sync(lambda: store.keys)
    except ClawmodeError as error:
        return Finding("store", "problem", f"{setup.state}: {error}")
    return Finding("store", "ok", str(setup.state))


def _plugins(setup: Setup) -> Iterator[Finding]:
    """Those that there are; none of their code runs."""
    plugins = describe_plugins(setup.configuration, setup.state)
    for found in plugins.find():
        about = f"{found.manifest.version}, at {found.folder}"
        yield Finding(f"plugin {found.manifest.id}", "ok", about)
    for view in plugins.views:
        if view.problem:
            yield Finding(f"plugin {view.id}", "problem", view.problem)


def _gateway(setup: Setup) -> Finding:
    known = place.find(setup.state)
    if known is None or not place.is_held(setup.state):
        return Finding("gateway", "ok", "none runs on this state folder")
    return Finding("gateway", "ok", f"at {known.url}, process {known.pid}, version {known.version}")


async def _servers(setup: Setup) -> AsyncIterator[Finding]:
    async with open_servers(setup, told=False) as servers:
        for view in servers.views:
            for finding in _server(view, setup.policy):
                yield finding
        if any(view.problem for view in servers.views):
            where = f"what they write to stderr is in {log_file(setup)}"
            yield Finding("MCP servers", "note", where)


def _server(view: ServerView, policy: Policy) -> Iterator[Finding]:
    what = f"MCP {view.name}"
    if view.problem:
        yield Finding(what, "problem", view.problem)
        return
    if view.state == "disabled":
        yield Finding(what, "note", "switched off")
        return
    yield Finding(what, "ok", f"{len(view.tools)} tools")
    yield from (Finding(what, "note", note) for note in view.notes)
    reasons = [reason for tool in view.tools if (reason := policy.why_denied(tool)) is not None]
    if reasons:
        text = f"policy hides {len(reasons)} of its tools: {reasons[0]}"
        yield Finding(what, "note", text)
