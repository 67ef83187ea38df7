"""The command as an operator types it: started, looked at, stopped; and the lines that it logs."""

import json
import logging
import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import httpx2
import pytest
from tests.support.cli_driver import clawmode, command_line, trusted
from tests.support.gateway_driver import wired
from tests.support.gateway_inside import ANY, inside
from tests.support.waiting import until

from clawmode.agent.requests import RunResult
from clawmode.core_tools.shell import _program
from clawmode.exceptions import ConfigurationError
from clawmode.gateway import command, logs, metrics
from clawmode.gateway.figures import MAX_MODELS, Figures
from clawmode.messages import Usage
from clawmode.models.base import ModelError
from clawmode.redaction import Redactor
from clawmode.rpc.client import GatewayClient
from clawmode.rpc.protocol import RpcError
from clawmode.testing import Turn, call, pause
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "gateway.md"


def typed(page: Path) -> list[list[str]]:
    """The commands in the first console block of a page, without the comments beside them."""
    (block, *_) = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = re.findall(r"^\$ clawmode (.*?)(?: +#.*)?$", block, re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.covers("N-1", "N-20", "N-41")
def test_the_gateway_starts_by_the_command_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others of the page find it; all of what it writes to a file is JSON."""
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    trusted(tmp_path, "{gateway: {port: 0}, plugins: {enabled: false}}")
    options: dict[str, Any] = {"cwd": tmp_path}
    start, *others = (line for line in typed(PAGE) if line[0] == "gateway")
    assert start == ["gateway"]
    gateway = subprocess.Popen(command_line(*start), stderr=subprocess.PIPE, text=True, **options)
    try:
        assert gateway.stderr is not None
        first = json.loads(gateway.stderr.readline())
        assert first["message"].startswith("the gateway is at ws://127.0.0.1:")
        said = [
            subprocess.run(
                command_line(*line),
                capture_output=True,
                text=True,
                timeout=15,
                check=True,
                **options,
            ).stdout
            for line in others
        ]
        words = [line.split()[0] for line in said]
        assert words == ["running", "nothing", first["at"], "stopped"]
        rest = gateway.stderr.read().splitlines()
        assert gateway.wait(10) == 0
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stderr.close()
    assert all({"at", "level", "message"} <= json.loads(line).keys() for line in rest)


@pytest.mark.covers("N-41")
async def test_stop_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, said, kill_others = list[int](), list[str](), os.kill

    def kill(pid: int, number: int) -> None:
        if pid == os.getpid():
            killed.append(number)
        else:
            kill_others(pid, number)

    monkeypatch.setattr(command.os, "kill", kill)
    monkeypatch.setattr(command, "TELL_SECONDS", 0.0)
    async with wired(tmp_path, [Turn(pause(60))], announced=True) as it:
        await it.call("agent", message="go")
        await until(lambda: it.model.requests)
        state = it.gateway.host.setup.state
        with pytest.raises(ConfigurationError, match=r"has not stopped in 0\.2 s; kill -9"):
            await anyio.to_thread.run_sync(command.stop_gateway, state, said.append, 0.2)
    assert killed == [signal.SIGTERM]
    assert said == [f"waiting for process {os.getpid()} and 1 run to end"]


@pytest.mark.covers("N-41")
async def test_a_lost_connection_is_reported_in_plain_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(tmp_path) as it, it.connect() as client:
        it.hang_up()
        await until(lambda: caplog.messages)
        assert await client.call("health")
    (told,) = caplog.messages
    assert told == (
        f"the connection to the gateway at {it.url} was lost (the gateway closed the connection "
        "(1011 lost)); connecting again"
    )


# ---- What is logged ----


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """The lines that were logged with a word in their message."""
    monkeypatch.setattr(logs, "RECENT", recent := deque[Any]())
    handler, clawmode = logs._LineHandler(Redactor(["hunter22"])), logging.getLogger("clawmode")
    before = clawmode.level
    clawmode.setLevel(logging.INFO)
    clawmode.addHandler(handler)
    yield lambda word: [line for line in recent if word in line["message"]]
    clawmode.removeHandler(handler)
    clawmode.setLevel(before)


Lines: TypeAlias = Callable[[str], list[dict[str, Any]]]


@pytest.mark.covers("N-11")
async def test_the_traceback_of_a_tool_is_in_the_log_without_secrets(
    tmp_path: Path, lines: Lines
) -> None:
    def broken(given: JsonObject, context: ToolContext) -> None:
        raise KeyError("hunter22")

    tool = Tool("broken", "Fails.", {"type": "object"}, broken)
    async with inside(tmp_path, tools=[tool]) as it:
        assert not (await it.call("tools.invoke", name="broken"))["ok"]
    (line,) = lines("openclaw:core:broken")
    assert "in broken" in line["traceback"]
    assert "KeyError: '***'" in line["traceback"]


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
    assert start["message"].startswith(f"run {start['about']['runId']} of 'admin' started: ")
    assert start["about"]["sender"] == "admin"
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
    (ran,) = lines("runs the command")
    assert ran["message"] == "session agent:main:main runs the command echo"
    assert "hunter22" not in json.dumps([*lines("")])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("ls -l", "ls"),
        ("A=b  C=d /usr/bin/env", "env"),
        ("cd x; rm y", "cd"),
        ("$(cat key)", "of the shell"),
        ("KEY=value", "of the shell"),
        ("KEY=half/half", "of the shell"),
        ("KEY=half/half (true)", "of the shell"),
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
        "/metrics: 127.0.0.1 sent an unknown token",
        "connect: 127.0.0.1 sent an unknown token",
    ]


@pytest.mark.covers("N-20")
def test_lines_at_a_terminal_have_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs._LineHandler(Redactor())
    handler._json = False
    handler.emit(logging.LogRecord("clawmode", logging.INFO, "", 0, "it is up", (), None))
    assert re.fullmatch(r"\d\d:\d\d:\d\d info: it is up\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("token", "add", "x", "--scope", "reed"), ("read, write, admin, approvals", "'reed'")),
        (("logs", "--level", "warn"), ("--level", "'warn'", "'warning'")),
    ],
)
def test_a_wrong_value_is_refused_in_the_words_of_the_command_line(
    words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    done = clawmode("gateway", *words)
    assert done.returncode == 2
    assert [word for word in says if word not in done.stderr] == []


@pytest.mark.covers("N-20")
def test_a_gateway_that_cannot_start_says_so_in_json(tmp_path: Path) -> None:
    (tmp_path / "clawmode.json5").write_text('{gateway: {port: "x"}}')
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 15}
    named = ["--state", "state", "--config", "clawmode.json5"]
    done = subprocess.run(command_line("gateway", *named), check=False, **options)
    assert done.returncode == 2
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in said] == ["error"]
    assert "gateway.port" in said[0]["message"]


# ---- Figures ----


def samples(text: str) -> dict[str, float]:
    """What a page of figures says, if it is in the format of Prometheus."""
    found: dict[str, float] = {}
    family = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert line.split()[3] in ("gauge", "counter", "histogram")
        elif not line.startswith("# HELP "):
            matched = re.fullmatch(SAMPLE, line)
            assert matched is not None, line
            name = re.sub("_(bucket|sum|count)$", "", matched["name"])
            assert family in (matched["name"], name)
            key = matched["name"] + (matched["labels"] or "")
            assert key not in found
            found[key.removeprefix("clawmode_")] = float(matched["value"])
    return found


LABEL = r'\w+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = rf"(?P<name>[a-z_]+)(?P<labels>{{{LABEL}(?:,{LABEL})*}})? (?P<value>\S+)"


@pytest.mark.covers("N-42")
async def test_figures_count_runs_tokens_errors_calls_and_jobs(tmp_path: Path) -> None:
    async def fine(given: JsonObject, context: ToolContext) -> str:
        return "ok"

    async def bad(given: JsonObject, context: ToolContext) -> str:
        raise ValueError("no")

    tools = [Tool(it.__name__, "Does it.", ANY, it, effect="read") for it in (fine, bad)]
    program = "await tools.fine({}); try { await tools.bad({}) } catch {} return 1"
    script = [
        Turn(call("exec", {"code": program}), usage=Usage(100, 20, 3, 4)),
        Turn("Done.", usage=Usage(1_234_567, 5)),
        Turn(error="overloaded"),
        Turn("It went well.", usage=Usage(1, 1)),
        Turn(error="auth"),
    ]
    jobs = [{"id": "tea", "every": "1d", "message": "Make tea."}]
    options: dict[str, Any] = {"rules": {"codeMode": True}, "cron": {"jobs": jobs}}
    async with inside(tmp_path, script, tools=tools, **options) as it:
        before = samples(metrics.render(it.gateway))
        for _ in range(2):
            run = await it.call("agent", message="go")
            await it.call("agent.wait", runId=run["runId"])
        await it.call("cron.run", id="tea")
        await until(lambda: it.gateway.figures.cron)
        after = samples(metrics.render(it.gateway))
    assert before['runs{state="running"}'] == before["run_duration_seconds_count"] == 0
    assert after['runs_total{status="ok"}'] == 2
    assert after['runs_total{status="error"}'] == after['cron_runs_total{status="error"}'] == 1
    assert after['tokens_total{model="scripted/scripted",kind="input"}'] == 1_234_668
    assert after['tokens_total{model="scripted/scripted",kind="cache_read"}'] == 3
    assert after['model_requests_total{model="scripted/scripted"}'] == 5
    assert after['model_errors_total{kind="overloaded"}'] == 1
    assert after['model_errors_total{kind="auth"}'] == 1
    assert after['tool_calls_total{by="model",result="ok"}'] == 1
    assert after['tool_calls_total{by="program",result="ok"}'] == 1
    assert after['tool_calls_total{by="program",result="error"}'] == 1
    buckets = [value for key, value in after.items() if "_bucket" in key]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after["run_duration_seconds_count"] == 3
    assert after["run_duration_seconds_sum"] > 0


@pytest.mark.covers("N-42")
def test_models_that_clients_name_do_not_multiply_the_figures() -> None:
    figures = Figures()
    for number in range(1_000):
        name = f'a"\\\n{number}'
        metadata: JsonObject = {"provider": "p", "model": name, "modelRequests": 1}
        result = RunResult(
            run_id="r", session_key="s", session_id="i", status="ok", metadata=metadata
        )
        figures.run_ended(result)
    assert len(figures.requests) == MAX_MODELS + 1
    assert figures.requests["other"] == 900
    lines = metrics._family("x", "counter", "X.", metrics._by("model", figures.requests))
    assert len(samples("\n".join(lines))) == MAX_MODELS + 1


@pytest.mark.covers("N-42")
async def test_figures_say_which_mcp_servers_are_connected(tmp_path: Path) -> None:
    servers = {"gone": {"command": "/nowhere/at/all"}, "off": {"command": "x", "enabled": False}}
    async with inside(tmp_path, mcp={"servers": servers}) as it:
        await until(lambda: it.gateway.host.runtime.servers()[0].state == "down")
        found = samples(metrics.render(it.gateway))
    assert found['mcp_server_up{server="gone"}'] == 0
