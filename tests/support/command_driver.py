"""`clawmode agent` in processes of its own, against a server of models that plays a script."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from tests.support.cli_driver import Person, trusted
from tests.support.forking import Zygote

from clawmode.testing import ScriptServer, Turn, call


@contextmanager
def serving(script: Any, **options: Any) -> Iterator[ScriptServer]:
    """A server of models, in a thread."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptServer(script, **options)) as server,
    ):
        yield server


def use_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives commands a state and a configuration of their own, and a plain environment."""
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("CLAWMODE_CONFIG", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def configure(folder: Path, server: ScriptServer, *, key: str = "none", **sections: Any) -> None:
    """Makes the served model the default of a folder, with code mode on."""
    provider = {"baseUrl": server.url, "api": "anthropic-messages", "apiKey": key}
    whole: dict[str, Any] = {
        "agents": {"defaults": {"model": "mine/small"}},
        "models": {"providers": {"mine": provider}},
        "tools": {"codeMode": True},
        **sections,
    }
    trusted(folder, json.dumps(whole))


def program(source: str, *words: str) -> Turn:
    """A turn that says the words, and runs a program."""
    return Turn(*words, call("exec", {"code": source}))


class Seat(Person):
    """A person at a terminal that shows stdout too; other arguments are as for `Person`."""

    def __init__(
        self,
        zygote: Zygote,
        *arguments: str,
        cwd: Path,
        stdin: str | None = None,
        stdout_too: bool = True,
        size: tuple[int, int] = (24, 80),
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            *arguments,
            cwd=cwd,
            stdin=stdin,
            stdout_too=stdout_too,
            size=size,
            environment=environment,
        )

    def __enter__(self) -> "Seat":
        return self
