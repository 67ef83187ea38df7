"""The worker process: what it loads, what it inherits, and a cell that moves between processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from tests.support.stepping import value_of
from tests.support.waiting import is_alive, until

from clawmode.code_mode.snapshots import KeyRing, seal
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Start, Suspension

pytestmark = pytest.mark.anyio

LOADED = """import sys
import clawmode.sandbox.worker
print(*sorted(name for name in sys.modules if name.startswith("clawmode")))
print("asyncio" in sys.modules, "pickle" in sys.modules, "anyio" in sys.modules)
"""

FINISH = """import sys, time
from pathlib import Path
import anyio
from clawmode.sandbox import artifacts
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Resume, Settlement
from clawmode.code_mode.snapshots import KeyRing, unseal

async def main():
    folder = Path(sys.argv[1])
    wasm = bytes.fromhex(artifacts.locked_hash("quickjs"))
    keys = KeyRing.load(folder)
    frozen = unseal((folder / "cell").read_bytes(), wasm, b"its owner", keys)
    async with Pool(size=1) as pool:
        cell, deadline = pool.cell(frozen), time.monotonic() + 15
        outcome = await pool.step(cell, Resume((Settlement(1, True, b'"b"'),)), deadline)
        settled = (Settlement(2, True, b'"c"'),)
        outcome = await pool.step(cell, Resume(settled, now=outcome.due), deadline)
        print(outcome.value.decode())

anyio.run(main)
"""


async def test_a_worker_loads_its_own_modules_and_no_others() -> None:
    done = await anyio.run_process([sys.executable, "-I", "-c", LOADED])
    modules, others = done.stdout.decode().splitlines()
    assert modules.split() == [
        "clawmode",
        "clawmode.exceptions",
        "clawmode.sandbox",
        "clawmode.sandbox.deadline",
        "clawmode.sandbox.frames",
        "clawmode.sandbox.guard",
        "clawmode.sandbox.image",
        "clawmode.sandbox.images",
        "clawmode.sandbox.line_map",
        "clawmode.sandbox.lockdown",
        "clawmode.sandbox.machine",
        "clawmode.sandbox.output",
        "clawmode.sandbox.packing",
        "clawmode.sandbox.protocol",
        "clawmode.sandbox.source",
        "clawmode.sandbox.swc",
        "clawmode.sandbox.typescript",
        "clawmode.sandbox.vm",
        "clawmode.sandbox.wasm",
        "clawmode.sandbox.worker",
        "clawmode.types",
    ]
    assert others == "False False False"


@pytest.mark.covers("WK-3")
async def test_a_worker_inherits_nothing(tmp_path: Path) -> None:
    os.environ["CLAWMODE_TEST_SECRET"] = "secret"
    with (tmp_path / "open").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        async with Pool(size=1, lockdown="off") as bare:
            assert await value_of(bare, "return 1") == 1
            process = Path(f"/proc/{next(iter(bare._workers.tenants)).pid}")
            assert await anyio.Path(process / "environ").read_bytes() == b""
            links = [os.readlink(process / "fd" / number) for number in os.listdir(process / "fd")]
    kinds = {link.split(":")[0] for link in links}
    assert kinds == {"/dev/null", "pipe"}
    assert len(links) <= 6


async def test_a_cell_frozen_here_finishes_in_a_process_started_later(tmp_path: Path) -> None:
    source = """let state = ["a"]; const add = (x) => state.push(x);
const timer = new Promise((r) => setTimeout(() => r("timer"), 50));
const first = tools.call("t", { n: 1 }), second = tools.call("t", { n: 2 });
add(await first); add(await timer); add(await second);
return state"""
    async with Pool(size=1) as pool:
        cell = pool.cell()
        idle = await pool.step(cell, Start(source), time.monotonic() + 15)
        assert isinstance(idle, Suspension), idle
        assert [json.loads(request.args)[1] for request in idle.requests] == [{"n": 1}, {"n": 2}]
        wasm = bytes.fromhex(artifacts.locked_hash("quickjs"))
        sealed = seal(await pool.freeze(cell), wasm, b"its owner", KeyRing.load(tmp_path))
    await anyio.Path(tmp_path / "cell").write_bytes(sealed)
    done = await anyio.run_process(
        [sys.executable, "-c", FINISH, str(tmp_path)], stderr=subprocess.PIPE
    )
    assert json.loads(done.stdout) == ["a", "b", "timer", "c"]


async def test_a_worker_ends_when_its_parent_does(tmp_path: Path) -> None:
    program = """import sys, time, anyio, os
from clawmode.sandbox.pool import Pool
from clawmode.sandbox.protocol import Start

async def main():
    async with Pool(size=1) as pool:
        await pool.step(pool.cell(), Start("return 1"), time.monotonic() + 10)
        print(next(iter(pool._workers.tenants)).pid, flush=True)
        await pool.step(pool.cell(), Start("for (;;);"), time.monotonic() + 50)

anyio.run(main)
"""
    async with await anyio.open_process([sys.executable, "-c", program], stderr=None) as parent:
        assert parent.stdout is not None
        pid = int(await parent.stdout.receive())
        parent.kill()
    await until(lambda: not is_alive(pid))
