"""What must not be seen in what is written about runs: the secrets that a setup knows."""

import os
from collections.abc import Iterator
from types import NoneType

from clawmode.app.setup import Setup
from clawmode.config.agents import KeySource, ProviderEntry
from clawmode.config.mcp import secret_arguments
from clawmode.config.operations import InstallPolicy, InternalHook
from clawmode.config.reader import Section, members
from clawmode.config.variables import names_in
from clawmode.core_tools.shell import Withheld
from clawmode.models.settings import KNOWN
from clawmode.types import JsonValue

MIN_SECRET = 6

ELSEWHERE = ("mcp", "mcp_servers")
"""Of these, each server knows its own."""


def known_secrets(setup: Setup) -> list[str]:
    """What must not be seen in what is written about runs."""
    found = [secret for server in setup.servers for secret in server.secrets]
    found += _secrets(setup.configuration)
    found += (os.environ.get(name, "") for name in secret_variables(setup))
    return [it for it in dict.fromkeys(found) if len(it) >= MIN_SECRET and "${" not in it]


def secret_variables(setup: Setup) -> frozenset[str]:
    """The variables of the environment that the configuration reads secrets from."""
    names = {known.key.env for known in KNOWN.values() if known.key and known.key.env}
    names |= {name for text in _secrets(setup.configuration) for name in names_in(text)}
    return frozenset(names | {it.env for it in _sources(setup.configuration) if it.env})


def withheld(setup: Setup) -> Withheld:
    """What commands do not inherit of our environment."""
    return Withheld(secret_variables(setup), tuple(known_secrets(setup)))


def _secrets(section: Section) -> Iterator[str]:
    """Every text that stands where the schema says that a secret may."""
    for member in members(type(section)).values():
        value = getattr(section, member.name)
        if member.name in ELSEWHERE or (isinstance(section, KeySource) and member.name != "key"):
            continue
        if isinstance(section, (InternalHook, InstallPolicy)) and member.name == "command":
            # Not every word: the log would be without `python3` and the names of files.
            yield from secret_arguments(value or ())
            continue
        if isinstance(section, ProviderEntry) and member.name == "base_url":
            value = value if value and ("@" in value or "?" in value) else None
        yield from _texts(value) if member.option.secret else _below(value)


def _below(value: object) -> Iterator[str]:
    for section in _sections(value):
        yield from _secrets(section)


def _sections(value: object) -> Iterator[Section]:
    if isinstance(value, Section):
        yield value
    elif isinstance(value, dict):
        yield from (each for each in value.values() if isinstance(each, Section))
    elif isinstance(value, tuple):
        yield from (each for each in value if isinstance(each, Section))


def _sources(section: Section) -> Iterator[KeySource]:
    """Where keys come from that do not stand in the file."""
    if isinstance(section, KeySource):
        yield section
    for member in members(type(section)).values():
        for below in _sections(getattr(section, member.name)):
            yield from _sources(below)


def _texts(value: "JsonValue | tuple[str, ...]") -> Iterator[str]:
    if isinstance(value, str):
        yield value
        return
    inside = value.values() if isinstance(value, dict) else value
    for each in () if isinstance(inside, (bool, int, float, NoneType)) else inside:
        yield from _texts(each)
