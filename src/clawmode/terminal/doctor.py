"""`clawmode doctor`: checks that everything that programs need is present, and says what to do."""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import anyio

from clawmode.agent.models import ModelPool
from clawmode.app import loading
from clawmode.app.backends import backend_of, closing
from clawmode.app.check import NO_KEY, OWN_TOOLS, missing_key, named_models
from clawmode.app.protected_paths import protected_paths
from clawmode.app.setup import Options, Setup, state_folder
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.config import resolve as settings
from clawmode.core_tools.exec_approvals import HOST_FILE, HostFile
from clawmode.exceptions import ClawmodeError, ConfigurationError, MissingExtra, require
from clawmode.plugins.setup import open_plugins
from clawmode.rpc import presence
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool
from clawmode.sessions.workspaces import current_folder
from clawmode.terminal.listings import count
from clawmode.types import dataclass

Health: TypeAlias = Literal["ok", "note", "problem"]

EXTRA_LIBRARIES = {
    "acp": ("editors that speak the Agent Client Protocol", ("acp",)),
    "agent": ("the models of agents", ("pydantic_ai", "openai", "anthropic", "httpx2")),
    "gateway": ("the gateway", ("starlette", "uvicorn", "websockets", "standardwebhooks")),
    "mcp": ("MCP servers and `clawmode mcp`", ("mcp", "httpx2", "jwt", "starlette", "uvicorn")),
    "postgres": ("programs in PostgreSQL", ("psycopg",)),
    "search": ("search by meaning", ("numpy",)),
}
"""What the extras are for, and libraries that they install."""

MAX_NAMED = 5

CELLS = {"javascript": "return 1 + 1", "typescript": "const n: number = 2; return n"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    health: Health
    detail: str


Tell: TypeAlias = Callable[[str], None]


async def examine(options: Options, tell: Tell = lambda text: None) -> AsyncIterator[Finding]:
    """Checks everything, and yields each result as soon as it is known; never raises.

    Args:
        options: The options of the command.
        tell: Receives a line before each step that takes long.
    """
    tell("running a program in JavaScript and in TypeScript")
    async for finding in _runtime():
        yield finding
    for finding in _extras():
        yield finding
    try:
        setup = loading.set_up(options)
    except ConfigurationError as error:
        report = loading.check(options.config, state_folder(options.state))
        for text in [problem.text for problem in report.errors] or [str(error)]:
            yield Finding("configuration", "problem", text)
        return
    for finding in (*_configuration(options, setup), *_models(setup), *_workspaces(setup)):
        yield finding
    warning = settings.approval_warning(setup.configuration)
    asks = "agents ask before calls that may change something"
    yield Finding("approval", "note" if warning else "ok", warning or asks)
    yield await _store(setup)
    if setup.servers:
        seconds = round(max(server.connect_timeout for server in setup.servers))
        tell(f"connecting {count(setup.servers, 'MCP server')}, which may take {seconds} s")
    async for finding in _servers(setup):
        yield finding
    plugins = open_plugins(setup.configuration, setup.state, load=False)  # runs none of their code
    for found in plugins.find():
        about = f"{found.manifest.version}, at {found.folder}"
        yield Finding(f"plugin {found.manifest.id}", "ok", about)
    for view in plugins.views:
        if view.problem:
            yield Finding(f"plugin {view.id}", "problem", view.problem)
    known, where = presence.find(setup.state), "no gateway runs on this state folder"
    if known is not None and presence.is_held(setup.state):
        where = f"at {known.url}, process {known.pid}, version {known.version}"
    yield Finding("gateway", "ok", where)


async def _runtime() -> AsyncIterator[Finding]:
    parts: tuple[artifacts.Part, ...] = ("quickjs", "swc")
    # Before the cells: compiling takes seconds the first time, and is not part of their time.
    for part in parts:
        with suppress(ClawmodeError):  # the cells below fail for the same reason
            await anyio.to_thread.run_sync(artifacts.load, part)
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


def _missing(extra: str) -> str:
    """Returns what is missing of an extra, and how to install it; empty if nothing is missing."""
    try:
        for library in EXTRA_LIBRARIES[extra][1]:
            require(library, extra)
    except MissingExtra as error:
        return str(error)
    return ""


def _extras() -> Iterator[Finding]:
    for extra, (purpose, _) in EXTRA_LIBRARIES.items():
        if missing := _missing(extra):
            yield Finding(f"extra {extra}", "note", f"not available: {purpose}; {missing}")
        else:
            yield Finding(f"extra {extra}", "ok", f"installed, for {purpose}")


def _configuration(options: Options, setup: Setup) -> Iterator[Finding]:
    report = loading.check(options.config, setup.state)
    where = "none: all settings have their defaults" if report.path is None else str(report.path)
    # Errors of MCP servers are reported with the servers, and missing keys with the models.
    errors = [it.text for it in report.errors if not it.path.startswith(("mcp.", "mcpServers"))]
    notes = [it.text for it in report.warnings if NO_KEY not in it.what]
    if not errors:
        yield Finding("configuration", "ok", where)
    yield from (Finding("configuration", "problem", text) for text in errors)
    known = {it.text for it in (*report.errors, *report.warnings)}
    notes += [text for text in setup.notes if text not in known]
    yield from (Finding("configuration", "note", text) for text in dict.fromkeys(notes))
    own = [tool for tool in OWN_TOOLS if tool.name != "wait"]
    tools = [*own, *setup.tools]
    shown = len(setup.policy.effective(tools))
    kinds = f"{len(own)} built-in and {len(setup.tools)} of Python"
    yield Finding("tools", "ok", f"{shown} of {count(tools, 'tool')} are allowed: {kinds}")


def _models(setup: Setup) -> Iterator[Finding]:
    """Checks the models of the configuration and their keys; runs no command of a key."""
    models = ModelPool(setup.configuration)
    main = settings.agent(setup.configuration).model.primary or ""
    if not main:
        hint = 'set agents.defaults.model, such as "anthropic/claude-sonnet-5"'
        yield Finding("model", "note", f"none is configured, so agents cannot run: {hint}")
    if main and (missing := _missing("agent")):
        yield Finding("model", "problem", f"{main} needs the extra `agent`: {missing}")
    keys: dict[str, Finding] = {}
    for name in dict.fromkeys((main, *(name for _, name in named_models(setup.configuration)))):
        try:
            used = models.settings(name) if name else None
        except ConfigurationError:
            continue  # reported with the configuration
        if used is None:
            continue
        yield Finding("model", "ok", f"{name}, at {used.place}")
        missing = missing_key(used)
        health: Health = "ok" if not missing else "problem" if name == main else "note"
        detail = missing or (f"from {used.key}" if used.key else "none is needed")
        keys.setdefault(used.id, Finding(f"key of {used.id}", health, detail))
    yield from keys.values()


def _workspaces(setup: Setup) -> Iterator[Finding]:
    """Lists the files with code, rules or keys that are in a workspace."""
    protected = [path for path in protected_paths(setup) if path.exists()]
    ids = dict.fromkeys((settings.MAIN, *(it.id for it in setup.configuration.agents.list)))
    folders: dict[Path, None] = {}
    for agent_id in ids:
        configured = settings.agent(setup.configuration, agent_id).workspace
        folder = Path(os.path.expanduser(configured)) if configured else current_folder(setup.state)
        if folder is not None:
            folders[folder.resolve()] = None
    for folder in folders:
        inside = [path for path in protected if path.resolve().is_relative_to(folder)]
        names = ", ".join(str(path.resolve().relative_to(folder)) for path in inside[:MAX_NAMED])
        if inside:
            more = f" and {len(inside) - MAX_NAMED} more" if len(inside) > MAX_NAMED else ""
            text = f"{folder} contains {names}{more}: file tools cannot change these, commands can"
            yield Finding("workspace", "note", text)
    problem = HostFile(setup.state / HOST_FILE).for_agent(settings.MAIN).problem
    if problem:
        yield Finding("commands", "problem", f"none may run: {problem}")


async def _store(setup: Setup) -> Finding:
    place = ""
    try:
        async with closing(backend_of(setup)) as backend:
            place = backend.place
            await backend.cells.leave(await backend.cells.join())
            await anyio.to_thread.run_sync(lambda: backend.cells.keys)
    except ClawmodeError as error:
        return Finding("store", "problem", f"{place}: {error}" if place else str(error))
    return Finding("store", "ok", place)


async def _servers(setup: Setup) -> AsyncIterator[Finding]:
    if setup.servers and (missing := _missing("mcp")):
        yield Finding("MCP servers", "problem", missing)
    if not setup.servers or _missing("mcp"):
        return
    from clawmode.app.servers import log_file, open_servers  # of the extra `mcp`

    # The findings report problems of servers; the log would repeat them on stderr.
    logging.getLogger("clawmode.mcp").propagate = False
    logging.getLogger("clawmode.mcp").addHandler(logging.NullHandler())
    async with open_servers(setup, show_problems=False) as servers:
        for view in servers.views:
            name = f"MCP {view.name}"
            if view.problem:
                yield Finding(name, "problem", view.problem)
                continue
            if view.state == "disabled":
                yield Finding(name, "note", "disabled")
                continue
            yield Finding(name, "ok", count(view.tools, "tool"))
            for note in view.notes:
                yield Finding(name, "note", note)
            denied = filter(None, (setup.policy.why_denied(tool) for tool in view.tools))
            if reasons := list(denied):
                text = f"policy hides {len(reasons)} of its tools: {reasons[0]}"
                yield Finding(name, "note", text)
        if any(view.problem for view in servers.views):
            where = f"the stderr output of MCP servers is in {log_file(setup)}"
            yield Finding("MCP servers", "note", where)
