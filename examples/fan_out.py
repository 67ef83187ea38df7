"""Many calls at once: one program, `Promise.all`, and what it saves.

The same twelve calls twice, one after the other and all together. `code_mode.watch` shows every
nested call as it starts and ends; from that comes the tree, with a bar for the time a call took.
"""

import time
from dataclasses import dataclass, field

import anyio
from rich.console import Console
from rich.tree import Tree

from clawmode import CallEvent, CodeMode, tool

COUNT, SECONDS = 12, 0.05

ONE_BY_ONE = f"""\
let total = 0;
for (let shop = 1; shop <= {COUNT}; shop++) total += await tools.turnover({{ shop }});
return total;
"""

ALL_AT_ONCE = f"""\
const shops = Array.from({{ length: {COUNT} }}, (_, index) => index + 1);
const turnovers = await Promise.all(shops.map((shop) => tools.turnover({{ shop }})));
return turnovers.reduce((total, turnover) => total + turnover);
"""


@tool
async def turnover(shop: int) -> int:
    """What a shop has taken in today. Its till answers slowly."""
    await anyio.sleep(SECONDS)
    return 100 * shop


@dataclass
class Timeline:
    """When the calls of each program began and ended, in the order in which they began."""

    spans: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, event: CallEvent) -> None:
        calls = self.spans.setdefault(event.parent_id or "", {})
        if event.phase == "start":
            now = time.perf_counter()
            calls[event.call_id] = (now, now)
        elif event.phase == "end":
            began, _ = calls[event.call_id]
            calls[event.call_id] = (began, began + event.seconds)

    def tree(self, program: str, seconds: float) -> Tree:
        """A program and its calls, drawn to scale: four characters are what one call takes."""
        calls = self.spans[program]
        zero = min(began for began, _ in calls.values())
        tree = Tree(f"[bold]{program}[/] {len(calls)} calls in {seconds * 1000:.0f} ms")
        for number, (began, ended) in enumerate(calls.values(), 1):
            left, right = (round((at - zero) / SECONDS * 4) for at in (began, ended))
            bar = " " * left + "━" * max(1, right - left)
            tree.add(f"turnover {number:2} [green]{bar}[/]")
        return tree


async def main() -> None:
    console = Console(width=100, highlight=False)
    timeline = Timeline()
    took: dict[str, float] = {}
    async with CodeMode(tools=[turnover]) as code_mode:
        code_mode.watch(timeline)
        for name, code in (("one by one", ONE_BY_ONE), ("all at once", ALL_AT_ONCE)):
            started = time.perf_counter()
            result = await code_mode.exec(code, call_id=name)
            took[name] = time.perf_counter() - started
            assert result.value == 100 * COUNT * (COUNT + 1) // 2, result
            console.print(timeline.tree(name, took[name]))

    calls = timeline.spans["all at once"].values()
    assert max(began for began, _ in calls) < min(ended for _, ended in calls), "not all at once"
    saved = took["one by one"] / took["all at once"]
    console.print(f"Promise.all was {saved:.1f} times as fast")


if __name__ == "__main__":
    anyio.run(main)
