"""Programs that wait, for a recorded store: `python -m tests.support.parked_programs FOLDER`.

This module wrote the folder `tests/code_mode/recorded`. Record it again only after a change of the
guest image: such a change makes parked programs of earlier builds unusable on purpose.
"""

import json
import sys
from pathlib import Path

import anyio

from clawmode import (
    Approvals,
    CodeMode,
    CodeModeConfig,
    Hooks,
    Pool,
    RequireApproval,
    RunContext,
    SqliteStore,
    ToolCallDecision,
    tool,
)
from clawmode.tools.hooks import BeforeToolCall

RECORDED = Path(__file__).parents[1] / "code_mode" / "recorded"
WHO = RunContext(agent_id="a", session_id="s", session_key="k", run_id="r")
NOW = 1_000_000_000.0
"""The time of the store's clock, when recorded and when read, so that no program ever expires."""

PROGRAMS = {
    "repeatable call": 'text("before"); return ["after", await tools.read({ name: "x" })]',
    "other call": """try { return await tools.write({ name: "x" }) }
catch (error) { return [error.code, error.toolId] }""",
    "approval": "return await tools.quick({})",
    "gate": "/* asks */ return 6 * 7",
    "timer": "await new Promise((resolve) => setTimeout(resolve, 2000)); return 'rang'",
    "yield": "let n = 41; await yield_control(); return n + 1",
}
"""Source texts, by the reason why each program waits."""


def make_code_mode(folder: Path, approvals: Approvals, pool: Pool, *, hangs: bool) -> CodeMode:
    """Returns a run over the store in `folder`; with `hangs`, its tools return no result."""

    async def answer(text: str) -> str:
        if hangs:
            await anyio.sleep_forever()
        return text

    @tool(idempotent=True)
    async def read(name: str) -> str:
        """Read."""
        return await answer(f"content of {name}")

    @tool(effect="write")
    async def write(name: str) -> str:
        """Write."""
        return await answer(f"written to {name}")

    @tool
    async def quick() -> str:
        """Return at once."""
        return "quick"

    def ask(event: BeforeToolCall) -> ToolCallDecision | None:
        if event.tool_kind == "code_mode_exec" and "asks" in str(event.params["code"]):
            return ToolCallDecision(require_approval=RequireApproval(title="Run this program?"))
        return None

    hooks = Hooks()
    hooks.before_tool_call(ask, name="ask")
    return CodeMode(
        tools=[read, write, quick],
        config=CodeModeConfig(timeout_ms=1000 if hangs else 10_000),
        store=SqliteStore(folder, clock=lambda: NOW),
        context=WHO,
        approvals=approvals,
        hooks=hooks,
        pool=pool,
    )


async def record(folder: Path) -> None:
    """Parks every program in a new store, and writes their ids to `programs.json`."""
    ids: dict[str, str] = {}
    async with Pool() as pool:
        async with make_code_mode(folder, Approvals(ask_for=["quick"]), pool, hangs=True) as run:
            for name, source in PROGRAMS.items():
                result = await run.exec(source)
                assert result.status == "waiting", (name, result)
                ids[name] = result.run_id
    (folder / "programs.json").write_text(json.dumps(ids, indent=1) + "\n")
    for lease in (folder / "owners").iterdir():
        lease.unlink()
    (folder / "owners").rmdir()


if __name__ == "__main__":
    anyio.run(record, Path(sys.argv[1]))
