"""The command as an operator types it: started, looked at, stopped; and the lines that it logs."""

import json
import logging
import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest
from tests.cli_driver import COMMAND
from tests.gateway.driver import wired
from tests.gateway.inside import inside

from clawmode.core_tools.shell import _program
from clawmode.gateway import logs
from clawmode.gateway.client import GatewayClient
from clawmode.gateway.protocol import RpcError
from clawmode.messages import Usage
from clawmode.models.base import ModelError
from clawmode.redaction import Redactor
from clawmode.testing import Turn, call

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def typed(page: Path) -> list[list[str]]:
    """The commands in the first console block of a page, without the comments beside them."""
    (block, *_) = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = re.findall(r"^\$ clawmode (.*?)(?: +#.*)?$", block, re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.covers("N-1", "N-20")
def test_the_gateway_starts_by_the_command_that_the_page_shows(tmp_path: Path) -> None:
    """And `status` and `stop` find it; all of what it writes to a file is JSON."""
    (tmp_path / "clawmode.json5").write_text("{gateway: {port: 0}, plugins: {enabled: false}}")
    environment = os.environ | {"CLAWMODE_STATE": str(tmp_path / "state")}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment}
    start, *others = (line for line in typed(PAGE) if line[0] == "gateway")
    assert start == ["gateway"]
    gateway = subprocess.Popen([*COMMAND, *start], stderr=subprocess.PIPE, text=True, **options)
    try:
        assert gateway.stderr is not None
        first = json.loads(gateway.stderr.readline())
        assert first["message"].startswith("the gateway is at ws://127.0.0.1:")
        said = [
            subprocess.run(
                [*COMMAND, *line], capture_output=True, text=True, timeout=15, check=True, **options
            ).stdout
            for line in others
        ]
        assert [line.partition(" ")[0].strip() for line in said] == ["running", "stopped"]
        rest = gateway.stderr.read().splitlines()
        assert gateway.wait(10) == 0
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stderr.close()
    assert all({"at", "level", "message"} <= json.loads(line).keys() for line in rest)


# ---- What is logged ----


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """The lines that were logged with a word in their message."""
    monkeypatch.setattr(logs, "RECENT", recent := deque[Any]())
    handler, clawmode = logs._Lines(Redactor(["hunter22"])), logging.getLogger("clawmode")
    monkeypatch.setattr(clawmode, "level", logging.INFO)
    clawmode.addHandler(handler)
    yield lambda word: [line for line in recent if word in line["message"]]
    clawmode.removeHandler(handler)


Lines: TypeAlias = Callable[[str], list[dict[str, Any]]]


@pytest.mark.covers("N-20")
async def test_the_start_and_the_end_of_every_run_are_logged(tmp_path: Path, lines: Lines) -> None:
    script = [
        Turn(call("exec", {"command": "TOKEN=hunter22 /bin/echo hunter22"}), usage=Usage(70, 8)),
        Turn("done", usage=Usage(80, 9)),
        Turn(error=ModelError("auth", "HTTP 401 for hunter22")),
    ]
    async with inside(tmp_path, script, rules={"codeMode": False}) as it:
        for _ in range(2):
            run = await it.call("agent", message="go")
            await it.call("agent.wait", runId=run["runId"])
    (start, failed_start), (end, failed) = lines(" started: "), lines(" ended: ")
    assert start["message"].endswith("session agent:main:main, trigger gateway")
    assert end["message"].endswith("model scripted/scripted, 150 tokens in, 17 out")
    assert end["level"] == "info"
    assert end["about"] == {
        "event": "run.end",
        "runId": start["about"]["runId"],
        "sessionKey": "agent:main:main",
        "agentId": "main",
        "status": "ok",
        "model": "scripted/scripted",
        "usage": {"input": 150, "output": 17, "cacheRead": 0, "cacheWrite": 0},
        "durationMs": end["about"]["durationMs"],
        "error": None,
    }
    assert (failed["level"], failed["about"]["status"]) == ("warning", "error")
    assert failed["about"]["error"] == "HTTP 401 for ***"
    assert failed["about"]["runId"] == failed_start["about"]["runId"]
    (command,) = lines("runs the command")
    assert command["message"] == "session agent:main:main runs the command echo"
    assert "hunter22" not in json.dumps([*lines("")])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("ls -l", "ls"),
        ("A=b  C=d /usr/bin/env", "env"),
        ("cd x; rm y", "cd"),
        ("$(cat key)", "of the shell"),
        ("=" * 5_000, "of the shell"),
        ("", "of the shell"),
    ],
)
def test_of_a_command_only_the_name_of_its_program_is_logged(command: str, name: str) -> None:
    assert _program(command) == name


@pytest.mark.covers("N-20")
async def test_wrong_tokens_are_logged(tmp_path: Path, lines: Lines) -> None:
    async with wired(tmp_path) as it, httpx2.AsyncClient() as http:
        address = f"http://127.0.0.1:{it.port}/metrics"
        answer = await http.get(address, headers={"authorization": "Bearer wrong-one"})
        with pytest.raises(RpcError):
            async with GatewayClient(it.url, "wrong-two", client_id="test"):
                pass
    assert answer.status_code == 401
    assert [line["message"] for line in lines("token")] == [
        "/metrics: 127.0.0.1 showed a token that is not known",
        "connect: 127.0.0.1 showed a token that is not known",
    ]


@pytest.mark.covers("N-20")
def test_lines_at_a_terminal_have_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs._Lines(Redactor())
    handler._json = False
    handler.emit(logging.LogRecord("clawmode", logging.INFO, "", 0, "it is up", (), None))
    assert re.fullmatch(r"\d\d:\d\d:\d\d info: it is up\n", capsys.readouterr().err)


@pytest.mark.covers("N-20")
def test_a_gateway_that_cannot_start_says_so_in_json(tmp_path: Path) -> None:
    (tmp_path / "clawmode.json5").write_text('{gateway: {port: "x"}}')
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 15}
    done = subprocess.run([*COMMAND, "gateway", "--state", "state"], check=False, **options)
    assert done.returncode == 2
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in said] == ["error"]
    assert "gateway.port" in said[0]["message"]
