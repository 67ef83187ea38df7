"""`clawmode agent` in processes of its own, against a server of models that plays a script."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
from tests.support.cli_driver import Person
from tests.support.forking import Zygote

from clawmode.testing import ScriptServer


@contextmanager
def serving(script: Any, **options: Any) -> Iterator[ScriptServer]:
    """A server of models, in a thread."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptServer(script, **options)) as server,
    ):
        yield server


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
