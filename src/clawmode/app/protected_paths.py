"""The files that a setup reads code, rules and keys from; file tools must not change them.

An agent that could write one of these files would decide which code the next turn runs, and which
rules apply to it. Modules that these files import, and commands of the shell, are not covered.
"""

import inspect
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from clawmode.app.setup import Setup
from clawmode.config.file import NAME
from clawmode.core_tools.exec_approvals import HOST_FILE

IN_STATE = (
    *(HOST_FILE, "plugins", "skills", "gateway-tokens.json", "trusted-configs.json"),
    *("snapshot.keys", "sessions"),
)
"""Protected names in the state folder: a workspace may be inside of it."""


def protected_paths(setup: Setup) -> tuple[Path, ...]:
    """Returns the files and folders that file tools must not change, existing or not."""
    here, configuration = Path.cwd(), setup.configuration
    found = [here / NAME, setup.here / NAME, *(setup.state / name for name in IN_STATE)]
    found += _files(setup.named, here)
    if setup.file is not None:
        found.append(setup.file)
    found += [here / _home(path) for path in configuration.plugins.load.paths]
    found += [here / _home(path) for path in configuration.skills.load.extra_dirs]
    for hook in configuration.hooks.internal.entries.values():
        if hook.file:
            found.append(setup.folder / _home(hook.file))
        found += _files(hook.command or (), setup.folder)
    found += _files(configuration.security.install_policy.command or (), here)
    providers = [it.auth for it in configuration.models.providers.values() if it.auth]
    for source in (*providers, *configuration.auth.profiles.values()):
        if source.file:
            found.append(here / _home(source.file))
        found += _files(source.command or (), here)
    if tls := configuration.gateway.tls:
        found += [here / _home(path) for path in (tls.cert, tls.key) if path]
    for server in setup.servers:
        words = (server.command, *server.args) if server.command else ()
        found += _files(words, here / _home(server.cwd or ""))
    for tool in setup.tools:  # the source files of tools that are Python functions
        function = inspect.unwrap(getattr(tool, "function", tool.execute))
        if code := getattr(function, "__code__", None):
            found.append(Path(code.co_filename))
    return tuple(dict.fromkeys(Path(os.path.abspath(path)) for path in found))


def _home(path: str) -> str:
    return os.path.expanduser(path)


def _files(words: Iterable[str], folder: Path) -> Iterator[Path]:
    """Yields the words of a command that are files: programs and scripts, but no folders."""
    for word in words:
        path = folder / _home(word)
        try:
            if path.is_file():
                yield path
        except (OSError, ValueError):  # not a path: too long, or with a NUL
            continue
