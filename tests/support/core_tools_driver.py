"""The core tools on a workspace with a neighbour that nobody may see or touch."""

import inspect
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from clawmode.context import RunContext
from clawmode.core_tools.suite import CoreTools, make_core_tools
from clawmode.exceptions import ToolProblem
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool, ToolContext, ToolResult

SECRET = "the-secret-of-the-neighbour"
RUN = RunContext(agent_id="main", session_id="s1", session_key="agent:main:s1", run_id="r1")
OTHER = RunContext(agent_id="main", session_id="s2", session_key="agent:main:s2", run_id="r2")

_numbers = count()


@dataclass(eq=False)
class Bench:
    """Calls tools: through the executor as programs do, or bare, to see what they raise."""

    suite: CoreTools
    root: Path
    executor: Executor
    answers: list[object] = field(default_factory=list[object])

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.suite.tools if tool.name == name)

    async def call(self, name: str, run: RunContext = RUN, **input: Any) -> Any:
        """What a program gets; raises what it would catch."""
        made = Call(id=f"c{next(_numbers)}", tool=self.tool(name), input=input, run=run)
        return (await self.executor.call(made)).value

    async def attempt(self, name: str, **input: Any) -> None:
        """Lets an attacker have a try, and keeps what came of it."""
        try:
            self.answers.append(await self.call(name, **input))
        except ToolFailure as failure:
            self.answers.append(str(failure))

    async def bare(self, name: str, run: RunContext = RUN, **input: Any) -> ToolResult:
        context = ToolContext(run=run, call_id=f"c{next(_numbers)}")
        execute: Callable[..., Any] = self.tool(name).execute
        if inspect.iscoroutinefunction(execute):
            return await execute(input, context)
        return await anyio.to_thread.run_sync(execute, input, context)

    async def problem(self, name: str, run: RunContext = RUN, **input: Any) -> str:
        """The code of what the tool raises."""
        with pytest.raises(ToolProblem) as caught:
            await self.bare(name, run, **input)
        return caught.value.code


@asynccontextmanager
async def bench(root: Path, hooks: Hooks | None = None, **settings: Any) -> AsyncIterator[Bench]:
    async with make_core_tools(root, **settings) as suite:
        yield Bench(suite, root, Executor(Policy(), hooks or Hooks()))


def neighbourhood(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace, and a folder beside it."""
    root, outside = tmp_path / "ws", tmp_path / "outside"
    (root / "inside").mkdir(parents=True)
    outside.mkdir()
    (root / "inside" / "plain.txt").write_text("plain\n", "utf-8")
    (outside / "secret.txt").write_text(SECRET + "\n", "utf-8")
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "ws-evil" / "secret.txt").write_text(SECRET + "\n", "utf-8")
    return root, outside


def picture(root: Path) -> dict[str, object]:
    """Everything in a folder, to compare."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(root):
        for name in names + files:
            path = Path(folder, name)
            readable = path.is_file() and not path.is_symlink()
            found[str(path)] = path.read_bytes() if readable else os.lstat(path).st_mode
    return found


def open_below(folder: Path) -> list[str]:
    """The files and folders in a folder that this process has open.

    To count all descriptors would be wrong: shared pools start and end workers at any time.
    """
    found: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if Path(path).is_relative_to(folder)]
