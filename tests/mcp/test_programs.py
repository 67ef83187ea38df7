"""Programs and the MCP servers that they call: real ones, slow ones, and such as die meanwhile."""

import gc
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from _pytest.mark import ParameterSet
from tests.mcp.test_http import free_port, sdk_server, start_sdk_server
from tests.mcp.test_real import behind_an_address, node
from tests.support.compiler import find_compiler, without_shared_types
from tests.support.mcp_driver import HERE, raw
from tests.support.waiting import is_alive, until

from clawmode import CodeMode, CodeModeConfig, CodeModeResult, Pool, Tool, tool
from clawmode.mcp import requests
from clawmode.tools.executor import CallEvent

# Of the function only: the first test to want them fetches the real servers.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20, func_only=True)]

TOLD = "const told = (error) => [error.name, error.code, error.toolId, error.message];"


@dataclass
class Scene:
    """A CodeMode, and what whoever watches it has seen."""

    code_mode: CodeMode
    events: list[CallEvent] = field(default_factory=list[CallEvent])

    async def value(self, source: str) -> Any:
        result = await self.finish(await self.code_mode.exec(source))
        assert result.status == "completed", result.error
        return result.value

    async def finish(self, result: CodeModeResult) -> CodeModeResult:
        while result.status == "waiting":
            result = await self.code_mode.wait(result.run_id)
        return result

    @property
    def updates(self) -> list[Any]:
        return [event.update for event in self.events if event.phase == "update"]

    @property
    def story(self) -> Any:
        """All events in short."""
        return [(it.phase, it.tool_id, it.update or it.code) for it in self.events][-20:]

    @property
    def prompt(self) -> str:
        return json.dumps(self.code_mode.definitions("openai"))


@asynccontextmanager
async def playing(
    pool: Pool, servers: dict[str, Any], *, seconds: float = 10, tools: list[Tool] | None = None
) -> AsyncIterator[Scene]:
    config = CodeModeConfig(timeout_ms=round(seconds * 1000))
    making = CodeMode(mcp_servers=servers, tools=tools or [], config=config, pool=pool)
    async with making as code_mode:
        scene = Scene(code_mode)
        code_mode.watch(scene.events.append)
        try:
            with anyio.fail_after(19):
                yield scene
        except TimeoutError:
            raise AssertionError(f"this took too long after {scene.story}") from None


# ---- Real servers ----


@dataclass(frozen=True)
class Started:
    """A server and how to hurt it."""

    entry: dict[str, Any]
    pid: Callable[[], int]
    restart: Callable[[], None] | None = None


def child(marker: str) -> int:
    """The process that we have started with this on its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = entry.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and marker in entry.joinpath("cmdline").read_text():
                return int(entry.name)
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no {marker}")


@contextmanager
def started(entry: dict[str, Any], marker: str) -> Iterator[Started]:
    """A server that its client starts, and starts again."""
    yield Started(entry, lambda: child(marker))


@contextmanager
def addressed(
    serve: Callable[[int], AbstractContextManager[subprocess.Popen[Any]]], path: str
) -> Iterator[Started]:
    """A server behind an address, which somebody has to start again."""
    port = free_port()
    with ExitStack() as running:
        process = running.enter_context(serve(port))

        def restart() -> None:
            running.close()
            running.enter_context(serve(port))

        entry = {"url": f"http://127.0.0.1:{port}/{path}"}
        # Not by its command line: another test may have such a server, too.
        yield Started(entry, lambda: process.pid, restart)


@contextmanager
def sdk(transport: str) -> Iterator[Started]:
    """A server of the SDK. The one for its restart waits already.

    It takes seconds to start, and the longer it takes, the less often its client looks for it.
    """
    spares: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def serve(port: int) -> Iterator[subprocess.Popen[bytes]]:
        spare = spares.pop() if spares else None
        if spare is None:
            spares.append(start_sdk_server(transport, port, "later"))
        with sdk_server(transport, port, spare) as process:
            yield process

    try:
        with addressed(serve, "sse" if transport == "sse" else "mcp") as server:
            yield server
    finally:
        for spare in spares:
            spare.kill()
            spare.communicate()


def every(node_servers: Path, transport: str) -> AbstractContextManager[Started]:
    """npm's server-everything."""
    marker = "server-everything"
    if transport == "stdio":
        return started(node(node_servers, marker), marker)
    path = "sse" if transport == "sse" else "mcp"
    return addressed(lambda port: behind_an_address(node_servers, transport, port), path)


TRANSPORTS = ["stdio", "streamableHttp", "sse"]


@pytest.mark.covers("MC-4", "MC-5", "CM-V10")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_program_uses_tools_resources_and_prompts_of_server_everything(
    pool: Pool, node_servers: Path, transport: str
) -> None:
    source = f"""{TOLD}
const {{ resources, resourceTemplates }} = await MCP.every.resources.list();
const {{ contents }} = await MCP.every.resources.read({{ uri: resources[0].uri }});
const {{ prompts }} = await MCP.every.prompts.list();
const {{ messages }} = await MCP.every.prompts.get({{
  name: "args-prompt", arguments: {{ city: "Rome" }},
}});
return {{
  echo: (await MCP.every.echo({{ message: "hi" }})).content[0].text,
  weather: (await MCP.every.getStructuredContent({{ location: "New York" }})).structuredContent,
  image: (await MCP.every.getTinyImage()).content.map((block) => block.type),
  resources: [resourceTemplates.length > 0, contents[0].uri === resources[0].uri],
  prompts: [prompts.some((prompt) => prompt.name === "args-prompt"), messages[0].content.text],
  missing: await MCP.every.echo({{}}).catch(told),
  noPrompt: await MCP.every.prompts.get({{ name: "no-such" }}).catch(told),
}}"""
    with every(node_servers, transport) as server:
        async with playing(pool, {"every": server.entry}) as scene:
            value = await scene.value(source)
    assert value["echo"] == "Echo: hi"
    assert set(value["weather"]) == {"temperature", "conditions", "humidity"}
    assert "image" in value["image"]
    assert value["resources"] == [True, True]
    assert value["prompts"][0] is True
    assert "Rome" in value["prompts"][1]
    name, code, tool_id, message = value["missing"]
    assert (name, code, tool_id) == ("ToolError", "invalid_tool_input", "mcp:every:echo")
    assert "message" in message
    assert value["noPrompt"][1:3] == ["tool_failed", "mcp:every:prompts/get"]
    assert "MCP server 'every' answered with error -32602" in value["noPrompt"][3]


@pytest.mark.covers("CM-V10")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_long_call_continues_while_its_program_is_parked_and_reports_to_watchers(
    pool: Pool, node_servers: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UPDATES_PER_SECOND", math.inf)  # some may be read at once
    source = """text("before");
const { content } = await MCP.every.triggerLongRunningOperation({ duration: 4, steps: 8 });
text("after"); return content[0].text"""
    with every(node_servers, transport) as server:
        async with playing(pool, {"every": server.entry}) as scene:
            parked = await scene.code_mode.exec(source, yield_ms=200)
            assert (parked.status, parked.reason) == ("waiting", "pending_tools")
            (pending,) = parked.pending_tool_calls
            assert isinstance(pending, dict)
            assert pending["toolId"] == "mcp:every:trigger-long-running-operation"
            before = len(scene.updates)
            await until(lambda: len(scene.updates) > before)  # nobody waits for it now
            ended = await scene.finish(parked)
    assert "Long running operation completed" in str(ended.value)
    output: list[Any] = [*parked.output, *ended.output]
    assert [part["text"] for part in output] == ["before", "after"]
    assert scene.updates[0] == {"progress": 1.0, "total": 8.0}
    steps = [update["progress"] for update in scene.updates]
    assert steps == sorted(steps)
    assert len(steps) >= 4


async def test_a_program_works_with_files_and_is_refused_what_is_outside(
    pool: Pool, node_servers: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.txt").write_text("hunter2", "utf-8")
    source = f"""const folder = {json.dumps(str(tmp_path))}, path = `${{folder}}/in/a.txt`;
await MCP.files.writeFile({{ path, content: "alpha beta" }});
await MCP.files.editFile({{ path, edits: [{{ oldText: "beta", newText: "gamma" }}] }});
const {{ content }} = await MCP.files.readTextFile({{ path }});
const outside = await MCP.files.readTextFile({{ path: `${{folder}}/secret.txt` }});
const many = await Promise.all(Array.from({{ length: 20 }},
  (_, i) => MCP.files.writeFile({{ path: `${{path}}.${{i}}`, content: `${{i}}` }})));
return [content[0].text, outside, many.filter((result) => !result.isError).length]"""
    entry = node(node_servers, "server-filesystem", str(tmp_path / "in"))
    async with playing(pool, {"files": entry}) as scene:
        text, outside, written = await scene.value(source)
    assert text == "alpha gamma"
    assert outside["isError"] is True
    assert "hunter2" not in json.dumps(outside)
    assert written == 20
    assert (tmp_path / "in" / "a.txt.19").read_text("utf-8") == "19"


async def test_one_program_joins_what_three_servers_say(
    pool: Pool, node_servers: Path, time_server: str, tmp_path: Path
) -> None:
    servers = {
        "every": node(node_servers, "server-everything"),
        "files": node(node_servers, "server-filesystem", str(tmp_path)),
        "time": {"command": time_server},
    }
    source = f"""const [now, sum, folders, nowhere] = await Promise.all([
  MCP.time.convertTime({{ source_timezone: "UTC", time: "12:00", target_timezone: "Asia/Tokyo" }}),
  MCP.every.getSum({{ a: 40, b: 2 }}), MCP.files.listAllowedDirectories(),
  MCP.time.getCurrentTime({{ timezone: "Mars/Olympus" }}),
]);
return [JSON.parse(now.content[0].text).target.datetime.slice(11, 16), sum.content[0].text,
  folders.content[0].text.includes({json.dumps(str(tmp_path))}), nowhere.isError]"""
    async with playing(pool, servers) as scene:
        time, sum_, folder, refused = await scene.value(source)
        assert (time, folder, refused) == ("21:00", True, True)
        assert "42" in sum_
        assert "MCP servers: every, files, time." in scene.prompt


@pytest.mark.covers("MC-6", "MC-7", "MC-8")
async def test_declarations_of_real_servers_compile_and_so_does_a_program_that_follows_them(
    pool: Pool, node_servers: Path, time_server: str, tmp_path: Path
) -> None:
    servers = {
        "every": node(node_servers, "server-everything"),
        "files": node(node_servers, "server-filesystem", str(tmp_path)),
        "time": {"command": time_server},
    }
    source = """const files = await API.list("mcp/");
const texts = {};
for (const { path } of files) texts[path] = await API.read(path);
const { tools, schemas } = await MCP.files.$api("read_text_file", { schema: true });
const { properties } = schemas.readTextFile.parameters;
return [texts, (await MCP.$api()).servers, tools, Object.keys(properties),
  texts["mcp/files.d.ts"].includes("function readTextFile"), Object.keys(MCP.time)]"""
    async with playing(pool, servers) as scene:
        texts, names, tools, properties, declared, functions = await scene.value(source)
    assert names == ["every", "files", "time"]
    assert (tools, declared) == (["readTextFile"], True)
    assert "path" in properties
    assert functions[:2] == ["convertTime", "getCurrentTime"]
    follows = """async function follow() {
  const { content } = await MCP.files.readTextFile({ path: "a", head: 3 });
  const { resources } = await MCP.every.resources.list();
  await MCP.every.getStructuredContent({ location: "Chicago" });
  await MCP.time.getCurrentTime({ timezone: resources[0].uri });
  await MCP.time.getCurrentTime({ zone: "UTC" });
  return content;
}"""
    errors = find_compiler(tmp_path).errors(
        every_d_ts=texts["mcp/every.d.ts"],
        files_d_ts=without_shared_types(texts["mcp/files.d.ts"]),
        time_d_ts=without_shared_types(texts["mcp/time.d.ts"]),
        follow_ts=follows,
    )
    assert errors == ['TS2353: await MCP.time.getCurrentTime({ zone: "UTC" });']


# ---- Servers that die, hang and come back ----


@dataclass(frozen=True)
class Victim:
    """A server that something happens to.

    Attributes:
        long: Calls what takes long and reports progress.
        short: Calls what answers at once.
    """

    server: Started
    long: str
    short: str
    said: str

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.server.pid(), number)


KINDS = ["raw stdio", "sdk stdio", "sdk http", "sdk sse", *(f"every {it}" for it in TRANSPORTS)]
TO_STOP = ["raw stdio", "sdk http", "every stdio", "every streamableHttp"]  # each takes seconds


def sampled(kinds: list[str], *sample: str) -> list[ParameterSet]:
    """Leave all but a sample to `make test-long`."""
    return [
        pytest.param(kind, marks=() if kind in sample else pytest.mark.ordeal) for kind in kinds
    ]


@pytest.fixture
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Victim]:
    kind, transport = request.param.split(" ")
    if kind == "every":
        calls = (
            "MCP.victim.triggerLongRunningOperation({ duration: 60, steps: 600 })",
            "MCP.victim.echo({ message: 'hi' })",
            "Echo: hi",
        )
        server = every(request.getfixturevalue("node_servers"), transport)
    elif kind == "sdk":
        calls = ("MCP.victim.count({ steps: 600 })", "MCP.victim.add({ a: 40 })", "42")
        if transport == "stdio":
            script = str(HERE / "sdk_server.py")
            server = started({"command": sys.executable, "args": [script, "stdio"]}, script)
        else:
            server = sdk(transport)
    else:
        state = str(tmp_path / "runs")
        calls = ("MCP.victim.progress({ steps: 600 })", "MCP.victim.otherId()", "for you")
        server = started(raw("good", state), state)
    with server as running:
        yield Victim(running, *calls)


def restarting(victim: Victim) -> Tool:
    @tool
    async def restart() -> None:
        """Start the server again, if nobody else does."""
        if victim.server.restart is not None:
            await anyio.to_thread.run_sync(victim.server.restart)

    return restart


# What became of the long call, of the other server, and of this one once it is back.
STORY = (
    TOLD
    + """
const first = await LONG.then(() => "answered", told);
const other = (await MCP.other.otherId()).content[0].text;
await tools.restart();
for (let tries = TRIES;; tries--) {
  try {
    const { content } = await SHORT;
    return [first, other, content[0].text];
  } catch (error) {
    if (tries <= 1) throw error;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}"""
)


async def strike(
    pool: Pool, victim: Victim, number: signal.Signals, *, parked: bool, tries: int = 1, **more: Any
) -> Any:
    """What a program tells whose server gets a signal in the middle of a call."""
    source = STORY.replace("LONG", victim.long).replace("SHORT", victim.short)
    servers = {"victim": victim.server.entry | more, "other": raw()}
    results: list[CodeModeResult] = []
    async with playing(pool, servers, seconds=15, tools=[restarting(victim)]) as scene:

        async def run() -> None:
            program, yield_ms = source.replace("TRIES", str(tries)), 500 if parked else None
            results.append(await scene.code_mode.exec(program, yield_ms=yield_ms))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: bool(scene.updates))
            if parked:
                await until(lambda: bool(results))
                assert results[0].status == "waiting"
            victim.signal(number)
            if parked:  # it is over before anybody asks
                await until(lambda: any(event.phase == "end" for event in scene.events), 10)
        ended = await scene.finish(results[0])
        assert ended.status == "completed", ended.error
        assert await scene.value("return 6 * 7") == 42
        assert scene.code_mode.missing_servers == {}
    value: Any = ended.value
    return value


@pytest.mark.covers("MC-9")
@pytest.mark.parametrize("parked", [False, True], ids=["driven", "parked"])
@pytest.mark.parametrize(
    "victim", sampled(KINDS, "raw stdio", "sdk http", "every sse"), indirect=True
)
async def test_a_server_that_is_killed_in_a_call_is_an_error_and_is_called_again_after_it(
    pool: Pool, victim: Victim, parked: bool
) -> None:
    # Where somebody has to start it again, it is not looked for all the time.
    tries = 1 if victim.server.restart is None else 40
    first, other, again = await strike(pool, victim, signal.SIGKILL, parked=parked, tries=tries)
    name, code, tool_id, message = first
    assert (name, code) == ("ToolError", "tool_failed")
    assert tool_id.startswith("mcp:victim:")
    assert message.startswith("MCP server 'victim' was lost during the call")
    assert "It is not known whether the call had an effect" in message
    assert (other, again) == ("for you", victim.said)


@pytest.mark.covers("MC-9")
@pytest.mark.parametrize("parked", [False, True], ids=["driven", "parked"])
@pytest.mark.parametrize("victim", sampled(TO_STOP, "raw stdio", "sdk http"), indirect=True)
async def test_a_server_that_is_stopped_in_a_call_is_an_error_in_time_and_is_replaced(
    pool: Pool, victim: Victim, parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawmode.mcp.connection.PROBE_SECONDS", 0.5)
    first, other, again = await strike(
        pool, victim, signal.SIGSTOP, parked=parked, tries=40, timeoutMs=2_000
    )
    assert first[:2] == ["ToolError", "tool_failed"]
    assert "MCP server 'victim' did not answer within" in first[3]
    assert (other, again) == ("for you", victim.said)


async def test_a_server_that_is_stopped_for_a_moment_has_lost_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    state, gate = str(tmp_path / "runs"), tmp_path / "gate"
    until_open = f"{{ steps: 5, until: {json.dumps(str(gate))} }}"
    source = f"return (await MCP.raw.progress({until_open})).content[0].text"
    async with playing(pool, {"raw": raw("good", state)}) as scene:
        parked = await scene.code_mode.exec(source, yield_ms=200)
        os.kill(child(state), signal.SIGSTOP)
        still = await scene.code_mode.wait(parked.run_id, yield_ms=200)
        assert still.status == "waiting"
        gate.touch()  # else it could be done before it is stopped
        os.kill(child(state), signal.SIGCONT)
        assert (await scene.finish(still)).value == "done"
    assert (tmp_path / "runs").stat().st_size == 1  # it was started once


@pytest.mark.covers("MC-9")
async def test_all_calls_that_a_program_has_open_fail_and_those_of_other_servers_do_not(
    pool: Pool, tmp_path: Path
) -> None:
    state = str(tmp_path / "runs")
    source = f"""{TOLD}
const open = Array.from({{ length: 5 }}, () => MCP.raw.never().catch(told));
const [slow, ...failed] = await Promise.all([MCP.other.progress({{ steps: 10 }}), ...open]);
return [slow.content[0].text, failed.map(([name, code]) => code)]"""
    async with playing(pool, {"raw": raw("good", state), "other": raw()}) as scene:
        results: list[Any] = []

        async def run() -> None:
            results.append(await scene.value(source))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: bool(scene.updates))
            os.kill(child(state), signal.SIGKILL)
        assert results == [["done", ["tool_failed"] * 5]]


@pytest.mark.covers("MC-9")
async def test_a_server_that_died_while_a_program_had_yielded_is_there_again(
    pool: Pool, tmp_path: Path
) -> None:
    state = str(tmp_path / "runs")
    source = """const pid = async () => (await MCP.raw.whatWasHeard()).structuredContent.pid;
const before = await pid(); await yield_control(); return [before, await pid()]"""
    async with playing(pool, {"raw": raw("good", state)}) as scene:
        parked = await scene.code_mode.exec(source)
        assert (parked.status, parked.reason) == ("waiting", "yield")
        victim = child(state)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: (tmp_path / "runs").stat().st_size == 2)  # it is started again
        ended = await scene.finish(parked)
        assert ended.status == "completed", ended.error
    before, after = cast("list[int]", ended.value)
    assert before == victim
    assert after != before


@pytest.mark.covers("MC-9")
async def test_a_server_that_stays_dead_is_reported_and_the_others_work(
    pool: Pool, tmp_path: Path
) -> None:
    entry = raw("starts_once", str(tmp_path / "runs"))
    source = f"""{TOLD}
const lost = await MCP.raw.kill().catch(told);
const gone = await MCP.raw.otherId().catch(told);
return [lost, gone, (await MCP.other.otherId()).content[0].text]"""
    async with playing(pool, {"raw": entry, "other": raw()}) as scene:
        prompt = scene.prompt
        lost, gone, other = await scene.value(source)
        assert "was ended by SIGKILL" in lost[3]
        assert gone[1:3] == ["tool_failed", "mcp:raw:other_id"]
        assert "MCP server 'raw' is not available: it exited with status 3" in gone[3]
        assert other == "for you"
        assert list(scene.code_mode.missing_servers) == ["raw"]
        assert scene.prompt == prompt
        again = await scene.code_mode.exec(f"{TOLD} return MCP.raw.otherId().catch(told)")
        assert "is not available" in str(again.value)


async def test_a_program_that_is_ended_ends_its_calls_at_the_server(pool: Pool) -> None:
    async with playing(pool, {"raw": raw()}) as scene:
        parked = await scene.code_mode.exec("await MCP.raw.never()", yield_ms=300)
        assert parked.status == "waiting"
        await scene.code_mode.abort(parked.run_id)
        heard = await scene.value("return (await MCP.raw.whatWasHeard()).structuredContent.heard")
        assert heard[-2:] == ["notifications/cancelled", "tools/call"]


async def test_leaving_while_a_server_is_stopped_and_called_is_quick_and_leaves_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    state = str(tmp_path / "runs")
    async with playing(pool, {"raw": raw("good", state)}) as scene:
        pid = child(state)
        os.kill(pid, signal.SIGSTOP)
        parked = await scene.code_mode.exec("await MCP.raw.never()", yield_ms=300)
        assert parked.status == "waiting"
        began = anyio.current_time()
    assert anyio.current_time() - began < 8
    assert not is_alive(pid)


def test_giving_up_while_a_server_is_being_started_leaves_no_process_and_no_pipe() -> None:
    async def give_up_after(turns: int) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(CodeMode(mcp_servers={"raw": raw()}, pool=Pool(size=1)).__aenter__)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what earlier tests have left is not meant
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        # With each loop ends what could still be tidied up. In a thread: here one is open.
        with ThreadPoolExecutor(1) as thread:
            for turns in range(16):  # the start takes half as many
                thread.submit(anyio.run, give_up_after, turns).result()
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


# ---- Servers that cannot be reached ----


@pytest.mark.covers("MC-9", "N-12", "MS-5")
@pytest.mark.parametrize(
    "entry",
    [
        {"command": "clawmode-no-such-command"},
        raw("exits"),
        raw("silent", connectTimeoutMs=500),
        raw("babbles", connectTimeoutMs=500),
        {"url": "http://127.0.0.1:1/mcp", "connectTimeoutMs": 2_000},
        {"type": "sse", "url": "http://127.0.0.1:1/sse", "connectTimeoutMs": 2_000},
    ],
    ids=["no command", "exits", "silent", "babbles", "http", "sse"],
)
async def test_one_server_that_cannot_be_reached_is_named_and_the_rest_works(
    pool: Pool, entry: dict[str, Any]
) -> None:
    source = """return [(await MCP.good.otherId()).content[0].text, "gone" in MCP,
(await API.list("mcp")).map((file) => file.path), (await MCP.$api()).servers]"""
    async with playing(pool, {"gone": entry, "good": raw()}) as scene:
        result = await scene.finish(await scene.code_mode.exec(source))
        assert result.value == [
            "for you", False, ["mcp/index.d.ts", "mcp/good.d.ts"], ["good"]
        ]  # fmt: skip
        assert list(scene.code_mode.missing_servers) == ["gone"]
        assert result.to_json()["mcpServers"] == {"gone": "unreachable"}
        assert "MCP servers: gone, good." in scene.prompt
        assert "mcpServers" not in (await scene.code_mode.exec("return 1")).to_json()
        failed = await scene.code_mode.exec("return await MCP.gone.anything({})")
        assert "The MCP server 'gone' cannot be " in (failed.error or "")


async def test_a_server_that_is_switched_off_is_not_missed(pool: Pool) -> None:
    async with playing(pool, {"off": raw(disabled=True), "good": raw()}) as scene:
        assert scene.code_mode.missing_servers == {}
        assert "off" not in scene.prompt.partition("MCP servers: ")[2]


@pytest.mark.covers("MC-9", "MS-5")
async def test_a_server_that_comes_up_later_is_there_for_the_next_program(
    pool: Pool, tmp_path: Path
) -> None:
    entry = raw("starts_when_told", str(tmp_path / "runs"))
    async with playing(pool, {"late": entry}) as scene:
        parked = await scene.code_mode.exec("await yield_control(); return 'late' in MCP")
        prompt = scene.prompt
        assert parked.mcp_servers == {"late": "unreachable"}
        (tmp_path / "runs.told").touch()
        await until(lambda: not scene.code_mode.missing_servers, 8)
        assert scene.prompt == prompt
        said = await scene.code_mode.exec("return (await MCP.late.otherId()).content[0].text")
        assert (said.value, said.mcp_servers) == ("for you", {"late": "connected"})
        # A program keeps the names that it started with.
        assert (await scene.finish(parked)).value is False
