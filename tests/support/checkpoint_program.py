"""A process of its own that runs a program with `durability: "effects"`, and dies at a given point.

`python -m tests.support.checkpoint_program FOLDER POINT SOURCE`. The effects of its tools are lines
of `FOLDER/effects`. A point is a name of `POINTS` with the number of the time at which it counts;
with `stop` before it, the process does not die, but stops.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from clawmode import CodeMode, CodeModeConfig, RunContext, SqliteStore, Tool, tool
from clawmode.code_mode import answers

WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
POINTS = ("before checkpoint", "after checkpoint", "before effect", "after effect", "after settle")
STOP = "stop "
"""Before a point: the process is stopped there."""


class Dying:
    """Kills or stops this process when a point is reached for the given time."""

    def __init__(self, point: str) -> None:
        self.signal = signal.SIGSTOP if point.startswith(STOP) else signal.SIGKILL
        self.name, _, number = point.removeprefix(STOP).rpartition(" ")
        self.left = int(number or 0)

    def at(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal)


def dying_store(folder: Path, dying: Dying) -> SqliteStore:
    """Returns a store whose process may die around a write."""
    store = SqliteStore(folder)
    made: Any = store
    checkpoint, settle = store.checkpoint, store.settle

    async def check(*args: Any, **kwargs: Any) -> int:
        dying.at("before checkpoint")
        fence = await checkpoint(*args, **kwargs)
        dying.at("after checkpoint")
        return fence

    async def answer(*args: Any, **kwargs: Any) -> str:
        done = await settle(*args, **kwargs)
        dying.at("after settle")
        return done

    made.checkpoint, made.settle = check, answer
    return store


def tools_of(folder: Path, dying: Dying | None = None) -> list[Tool]:
    """Returns tools that note their effects in `folder`."""
    dying = dying or Dying("")

    def note(what: str) -> None:
        dying.at("before effect")
        with (folder / "effects").open("a") as file:
            file.write(what + "\n")
        dying.at("after effect")

    @tool(effect="read")
    async def look() -> str:
        """Only read."""
        with (folder / "reads").open("a") as file:
            file.write("look\n")
        return "seen"

    @tool(effect="read")
    async def ponder() -> str:
        """Read for longer than answers wait for their copy."""
        with anyio.move_on_after(0.5):
            await anyio.sleep_forever()
        return "thought"

    @tool(effect="write")
    async def write(n: int) -> str:
        """Write once."""
        note(f"write {n}")
        return f"wrote {n}"

    @tool(effect="write", idempotent=True)
    async def put(n: int) -> str:
        """Write, as often as one likes."""
        note(f"put {n}")
        return f"put {n}"

    return [look, ponder, write, put]


async def main() -> None:
    folder, point, source = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    dying = Dying(point)
    if dying.name != "after settle":
        answers.COPY_AFTER = 60.0  # else, a slow machine may have copied an answer before
    store = dying_store(folder / "state", dying)
    config = CodeModeConfig(durability="effects")
    tools = tools_of(folder, dying)
    async with CodeMode(tools=tools, store=store, context=WHO, config=config) as code_mode:
        result = await code_mode.exec(source)
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    anyio.run(main)
