"""Measures how fast transcripts are appended to and read, alone or against another source tree.

    python -m bench.transcripts [--megabytes N] [--rounds N] [--against <other checkout>/src]

Each measurement runs in a process of its own, and the two trees take turns, so that a machine that
is busy for a while slows both; times are CPU time. The lines are those of an agent: questions,
thoughts, tool calls, nested calls and results, most of them short, a few of them long.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("append", "read")

# Imports only names that every release of the format has had.
PROGRAM = """
import sys, tempfile, time
from pathlib import Path
import anyio
from clawmode.messages import AssistantMessage, Text, Thinking, ToolCall, ToolMessage, UserMessage
from clawmode.sessions.entries import Header
from clawmode.sessions.history import read_transcript
from clawmode.sessions.transcript import open_transcript

def turn(number):
    call = ToolCall(f"call-{number}", "exec", {"command": "text(await tools.read({path: 'a'}))" * 5,
        "limits": {"timeoutMs": 10_000, "depth": [1, 2, 3]}}, {"id": f"fc_{number}"})
    said = (Thinking("I should look at the file first. " * 8, {"signature": "c2lnbmF0dXJl" * 10}),
        Text("Let me read the file."), call)
    rows = [{"path": f"src/file-{row}.py", "line": row, "ok": True, "score": row / 7}
        for row in range(20 if number % 50 else 4_000)]
    result = ToolMessage(call_id=call.id, name="exec", details={"status": "completed"},
        content=(Text(("Zeile für Zeile: " + repr(rows))[:200_000]),))
    return call, AssistantMessage(content=said, provider="openai", model="gpt", stop="tool_calls",
        meta={"responseId": f"resp_{number}"}), result

async def main(path, wanted):
    header = Header(id="bench", key="agent:main:bench", agent_id="main", created_at=0.0)
    turns = [turn(number) for number in range(200)]
    async with open_transcript(path, header) as transcript:
        begun = time.process_time()
        runs = 0
        while path.stat().st_size < wanted:
            run_id = f"run-{runs}"
            runs += 1
            transcript.start_run(run_id, model="openai/gpt", code_mode=True)
            transcript.message(run_id, UserMessage.of("Read the files, and tell me what they do."))
            for call, said, result in turns:
                transcript.message(run_id, said)
                for state in ("started", "completed"):
                    transcript.nested(run_id, parent_id=call.id, call_id=f"{call.id}:1",
                        tool_id="core:read", state=state, seconds=0.01)
                transcript.message(run_id, result)
            transcript.end_run(run_id, "ok")
        appended = time.process_time() - begun
    begun = time.process_time()
    history = read_transcript(path)
    read = time.process_time() - begun
    assert not history.unreadable and len(history.entries) > 100
    megabytes = path.stat().st_size / 1e6
    print(megabytes / appended, megabytes / read)

with tempfile.TemporaryDirectory() as folder:
    anyio.run(main, Path(folder) / "bench.jsonl", float(sys.argv[1]))
"""


def measure(source: Path, megabytes: int) -> tuple[float, ...]:
    """Returns the megabytes per second of each step."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(megabytes * 1e6)],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    """Measures, and prints one line for each tree and step."""
    parser = argparse.ArgumentParser(description="Measures appending to and reading transcripts.")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="the `src` folder of another checkout")
    given = parser.parse_args()
    trees = {"this tree": ROOT / "src"}
    if given.against is not None:
        trees["the other"] = given.against.resolve(strict=True)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in trees}
    for _ in range(given.rounds):
        for name, source in trees.items():
            found[name].append(measure(source, given.megabytes))
    console = Console(highlight=False)
    for index, step in enumerate(STEPS):
        speeds = {
            name: statistics.median(each[index] for each in rounds)
            for name, rounds in found.items()
        }
        text = ", ".join(f"{name} {speed:.0f} MB/s" for name, speed in speeds.items())
        if given.against is not None:
            ratio = speeds["the other"] / speeds["this tree"]
            text += f"; this tree needs {ratio:.2f} times the time of the other"
        console.print(f"{step}: {text}")


if __name__ == "__main__":
    main()
