"""The secrets of a setup, which are redacted from transcripts, logs and environments."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType

from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.config.agents import KeySource, ProviderEntry
from clawmode.config.file import variable_names
from clawmode.config.mcp_values import secret_arguments
from clawmode.config.operations import InstallPolicy, InternalHook
from clawmode.core_tools.shell import WithheldSecrets
from clawmode.models.providers import KNOWN
from clawmode.redaction import Redactor
from clawmode.sections import Section, is_secret
from clawmode.sessions.export import EXPORTS, export
from clawmode.sessions.history import History
from clawmode.sessions.store import Session
from clawmode.sessions.trajectory import sidecar_path
from clawmode.sessions.workspaces import workspace_of
from clawmode.types import JsonObject, JsonValue

MIN_SECRET = 6

ELSEWHERE = ("mcp", "mcp_servers")
"""Sections that are not searched: `ServerSettings.secrets` has the secrets of MCP servers."""


def known_secrets(setup: Setup) -> list[str]:
    """Returns the texts that have to be redacted in everything that is recorded about runs."""
    found = [secret for server in setup.servers for secret in server.secrets]
    found += _secrets(setup.configuration)
    found += (os.environ.get(name, "") for name in secret_variables(setup))
    # Short texts would blank out ordinary words, and `${NAME}` is the name of a variable.
    return [it for it in dict.fromkeys(found) if len(it) >= MIN_SECRET and "${" not in it]


def secret_variables(setup: Setup) -> frozenset[str]:
    """Returns the environment variables that the configuration reads secrets from."""
    names = {known.key.env for known in KNOWN.values() if known.key and known.key.env}
    names |= {name for text in _secrets(setup.configuration) for name in variable_names(text)}
    return frozenset(names | {it.env for it in _sources(setup.configuration) if it.env})


def withheld(setup: Setup) -> WithheldSecrets:
    """Returns the variables and values that commands must not inherit from our environment."""
    return WithheldSecrets(secret_variables(setup), tuple(known_secrets(setup)))


def _secrets(section: Section) -> Iterator[str]:
    """Yields every value of a setting that the schema marks as secret."""
    for name, value in section:
        if name in ELSEWHERE or (isinstance(section, KeySource) and name != "key"):
            continue
        if isinstance(section, (InternalHook, InstallPolicy)) and name == "command":
            # Not every word: `python3` and names of files would be redacted in the log.
            yield from secret_arguments(value or ())
            continue
        if isinstance(section, ProviderEntry) and name == "base_url":
            value = value if value and ("@" in value or "?" in value) else None
        if is_secret(type(section), name):
            yield from _texts(value)
        else:
            for inner in _sections(value):
                yield from _secrets(inner)


def _sections(value: object) -> Iterator[Section]:
    """Yields the sections in a value: the value itself, or those in a table or a list."""
    if isinstance(value, Section):
        yield value
    elif isinstance(value, dict):
        yield from (item for item in value.values() if isinstance(item, Section))
    elif isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, Section))


def _sources(section: Section) -> Iterator[KeySource]:
    """Yields the sources of keys that are not written in the file itself."""
    if isinstance(section, KeySource):
        yield section
    for _, value in section:
        for inner in _sections(value):
            yield from _sources(inner)


def _texts(value: "JsonValue | tuple[str, ...]") -> Iterator[str]:
    """Yields all texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
        return
    items = value.values() if isinstance(value, dict) else value
    for item in () if isinstance(items, (bool, int, float, NoneType)) else items:
        yield from _texts(item)


def export_folder(setup: Setup, session: Session) -> Path:
    """Returns the workspace to which the bundles of a session are exported."""
    agent = settings.agent(setup.configuration, session.agent_id)
    return workspace_of(setup.state, agent.id, agent.workspace)


def export_session(setup: Setup, session: Session, history: History, name: str) -> JsonObject:
    """Writes the bundle of a session, without secrets, to a new folder in the agent's workspace.

    Returns:
        The description of the bundle.
    """
    workspace = export_folder(setup, session)
    bundle = export(
        history,
        sidecar_path(session.transcript, session.id),
        workspace=workspace,
        name=name or None,
        redactor=Redactor(known_secrets(setup), workspace=workspace, home=Path.home()),
    )
    return {
        "sessionKey": session.key,
        "folder": os.fspath(bundle.folder),
        "name": os.fspath(bundle.folder.relative_to(workspace / EXPORTS)),
        "files": list[JsonValue](bundle.files),
        "events": bundle.events,
        "runtimeEvents": bundle.runtime_events,
        "skipped": bundle.skipped,
        "cut": dict(bundle.cut),
    }
