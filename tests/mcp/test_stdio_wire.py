"""The stdio wire of `clawmode mcp`: the first answer, lines that are no messages, and the end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from tests.support.face_driver import TOOLS, command, environment, open_face
from tests.support.forking import interpreter
from tests.support.waiting import until

from clawmode.mcp.stdio_wire import VERSIONS, StdioWire, greeting

HELLO: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}
STUBBORN = """
import json, os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for line in sys.stdin:
    message = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "stubborn", "version": "1"}},
        "tools/list": {"tools": []},
    }
    answer = {"result": answers.get(message["method"])}
    if message["method"] not in answers:  # without an answer, the newest handshake takes 7.5 s
        answer = {"error": {"code": -32601, "message": "unknown method"}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
        if message["method"] == "tools/list":
            with open("pid.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename("pid.new", "pid")
while True:
    signal.pause()
"""


def line(method: str, id_: Any = None, **params: Any) -> bytes:
    about = {} if id_ is None else {"id": id_}
    return json.dumps({"jsonrpc": "2.0", **about, "method": method, "params": params}).encode()


@contextlib.contextmanager
def running(folder: Path, *more: str) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(
        [*interpreter(), *command(*more)],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def ask(process: "subprocess.Popen[bytes]", *lines: bytes) -> Any:
    """Sends lines, and returns the next message."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"".join(each + b"\n" for each in lines))
    return json.loads(process.stdout.readline())


# ---- The first answer ----


@pytest.mark.covers("MF-1")
@pytest.mark.anyio
@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, "1999-01-01", ""])
async def test_the_early_answer_is_the_answer_of_the_sdk(version: str) -> None:
    """Also tells when the list of versions, or the capabilities, are no longer those of the SDK."""
    assert sorted(VERSIONS) == sorted(HANDSHAKE_PROTOCOL_VERSIONS)
    hello = line("initialize", 7, **HELLO | {"protocolVersion": version})
    (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
    with (
        os.fdopen(write_in, "wb", buffering=0) as to_server,
        os.fdopen(read_out, "rb") as from_server,
    ):
        async with open_face() as face:
            wire = StdioWire(read_in, write_out)
            to_server.write(hello + b"\n")
            early = json.loads(await anyio.to_thread.run_sync(from_server.readline))
            wire._greeted = None  # pyright: ignore[reportPrivateUsage]
            with anyio.fail_after(10):
                async with wire.connected() as (incoming, outgoing):
                    options = face.server.create_initialization_options()
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(face.server.run, incoming, outgoing, options)
                        late = json.loads(await anyio.to_thread.run_sync(from_server.readline))
                        to_server.close()
    assert early == late


@pytest.mark.covers("MF-1")
def test_initialize_is_answered_while_the_tools_are_still_imported(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "print('a module that prints does not break the wire', flush=True)\n"
        "os.system('echo nor does a child')\n"
        f"open({str(gate)!r}).read()\n"
        "tools = []\n"
    )
    with running(tmp_path) as process:
        first = ask(process, line("initialize", 1, **HELLO))
        assert first["result"]["serverInfo"]["name"] == "clawmode"
        gate.write_text("go on")
        second = ask(process, line("notifications/initialized"), line("tools/list", "two"))
        assert second["id"] == "two"  # the SDK's own answer to `initialize` was dropped
        assert [each["name"] for each in second["result"]["tools"]] == ["exec", "wait"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        line("initialize"),
        line("initialize", None),
        line("initialize", 1),
        line("initialize", True, **HELLO),
        line("initialize", 1, **HELLO | {"clientInfo": {}}),
        line("initialize", 1, **HELLO | {"capabilities": []}),
        line("initialize", 1, **HELLO | {"protocolVersion": 1}),
        line("tools/list", 1, **HELLO),
    ],
)
def test_a_message_that_is_no_initialize_is_left_to_the_sdk(message: bytes) -> None:
    assert greeting(message) is None


@pytest.mark.hostile
@pytest.mark.covers("MF-4")
def test_lines_that_are_no_messages_are_answered(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("tools = []\n")
    bad = [
        (b"{", -32700, None),
        (b'{"jsonrpc": "2.0", "id": 5, "method": "x", "params": {"a": "\\ud800"}}', -32600, 5),
        (b'[{"jsonrpc": "2.0", "id": 6, "method": "ping"}]', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 7.5, "method": "ping"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": null, "method": "tools/call", "params": {}}', -32600, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 100_000, -32700, None),
    ]
    with running(tmp_path) as process:
        ask(process, line("initialize", 1, **HELLO))
        for sent, code, id_ in bad:
            told = ask(process, b"  ", sent)
            assert (told["error"]["code"], told["id"]) == (code, id_), told
        assert ask(process, line("ping", 9))["result"] == {}


@pytest.mark.hostile
@pytest.mark.covers("MF-4")
@pytest.mark.parametrize("answer", [{"action": "yes"}, {"action": "accept", "content": [1]}])
def test_an_invalid_answer_to_a_question_rejects_the_call(tmp_path: Path, answer: Any) -> None:
    (tmp_path / "mine.py").write_text(TOOLS)
    with running(tmp_path) as process:
        ask(process, line("initialize", 1, **HELLO | {"capabilities": {"elicitation": {}}}))
        code = 'return tools.write({ text: "x" }).catch((error) => error.message)'
        call = line("tools/call", 2, name="exec", arguments={"code": code})
        question = ask(process, line("notifications/initialized"), call)
        assert question["method"] == "elicitation/create"
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
        told = ask(process, json.dumps(reply).encode())
        assert "its answer is not valid" in told["result"]["content"][0]["text"], told


# ---- The end ----


@pytest.mark.anyio
@pytest.mark.covers("MF-9")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGINT", "stdin", "both pipes"])
async def test_every_end_is_clean_and_leaves_no_child(tmp_path: Path, how: str) -> None:
    (tmp_path / "mine.py").write_text("tools = []\n")
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    entry = {"command": sys.executable, "args": ["stubborn.py"]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"stubborn": entry}}))
    with running(tmp_path, "--mcp-config", "servers.json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        await anyio.to_thread.run_sync(ask, process, line("initialize", 1, **HELLO))
        await until((tmp_path / "pid").exists)
        child = int((tmp_path / "pid").read_text())
        if how.startswith("SIG"):
            process.send_signal(getattr(signal, how))
        if how == "both pipes":
            call = line("tools/call", 2, name="exec", arguments={"code": "for (;;);"})
            process.stdin.write(line("notifications/initialized") + b"\n" + call + b"\n")
            process.stdout.close()
        if not how.startswith("SIG"):
            process.stdin.close()
        await until(lambda: process.poll() is not None)
        told = process.stderr.read().decode()
    assert process.returncode == (130 if how == "SIGINT" else 0)
    assert told.replace("clawmode: stopped\n", "") == ""
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
