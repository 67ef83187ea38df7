"""What a setup reads code, rules and keys from: file tools of its agents must not change it.

Whoever could write one of these files would decide what runs in the next turn, and without which
rules. What these files import from beside them, and what commands of the shell do, is not covered.
"""

import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from clawmode.app.own_tools import HOST_FILE
from clawmode.app.setup import Setup
from clawmode.config.agents import AuthProfile, KeySource
from clawmode.config.file import NAME
from clawmode.tools.tool import Tool

IN_STATE = (
    *(HOST_FILE, "plugins", "skills", "gateway-tokens.json", "trusted-configs.json"),
    *("snapshot.keys", "sessions"),
)
"""What is read from the state folder, in case a workspace is inside of it."""


def protected_paths(setup: Setup) -> tuple[Path, ...]:
    """The files and folders that file tools must not change, whether they are there or not."""
    here, configuration = Path.cwd(), setup.configuration
    found = [here / NAME, *(setup.state / name for name in IN_STATE)]
    found += _files(setup.named, here)
    if setup.file is not None:
        found.append(setup.file)
    found += [here / _home(each) for each in configuration.plugins.load.paths]
    found += [here / _home(each) for each in configuration.skills.load.extra_dirs]
    for hook in configuration.hooks.internal.entries.values():
        if hook.file:
            found.append(setup.folder / _home(hook.file))
        found += _files(hook.command or (), setup.folder)
    found += _files(configuration.security.install_policy.command or (), here)
    providers = [it.auth for it in configuration.models.providers.values() if it.auth]
    for source in (*providers, *configuration.auth.profiles.values()):
        found += _sources(source, here)
    if tls := configuration.gateway.tls:
        found += [here / _home(each) for each in (tls.cert, tls.key) if each]
    for server in setup.servers:
        words = (server.command, *server.args) if server.command else ()
        found += _files(words, here / _home(server.cwd or ""))
    found += _code_of(setup.tools)
    return tuple(dict.fromkeys(Path(os.path.abspath(each)) for each in found))


def _home(path: str) -> str:
    return os.path.expanduser(path)


def _sources(source: "KeySource | AuthProfile", here: Path) -> Iterator[Path]:
    if source.file:
        yield here / _home(source.file)
    yield from _files(source.command or (), here)


def _files(words: Iterable[str], folder: Path) -> Iterator[Path]:
    """The words of a command that are files: programs and scripts. A folder is where it works."""
    for word in words:
        path = folder / _home(word)
        try:
            if path.is_file():
                yield path
        except (OSError, ValueError):  # no path at all: too long, or with a NUL
            continue


def _code_of(tools: Iterable[Tool]) -> Iterator[Path]:
    """Where Python tools are written down, as far as they are functions."""
    for tool in tools:
        function = inspect.unwrap(getattr(tool, "function", tool.execute))
        code = getattr(function, "__code__", None)
        if code is not None:
            yield Path(code.co_filename)
