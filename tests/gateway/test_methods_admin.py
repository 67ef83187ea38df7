"""Operation: tokens, health, servers, plugins, the configuration as text, the log, downloads."""

import base64
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.test_methods_operation import SECRETS
from tests.support.gateway_driver import wired
from tests.support.gateway_inside import Inside, inside
from tests.support.mcp_driver import HERE as MCP
from tests.support.waiting import until

from clawmode.gateway import logs, operation_methods
from clawmode.redaction import Redactor
from clawmode.rpc.client import GatewayClient
from clawmode.rpc.protocol import Request, RpcError
from clawmode.text import HIDDEN
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio


# ---- Tokens ----


async def end_of(client: GatewayClient) -> str:
    """The code with which the gateway no longer accepts a client."""
    try:
        with client.events() as told, anyio.fail_after(10):
            async for _ in told:
                pass
    except RpcError as error:
        return error.code
    return ""


@pytest.mark.covers("GP-17")
async def test_a_token_is_created_used_listed_and_revoked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clawmode.gateway")
    async with wired(tmp_path) as it, it.connect() as operator:
        wanted: JsonObject = {"name": "phone", "scopes": ["operator.approvals"]}
        made: Any = await operator.call("tokens.create", wanted)
        assert made["scopes"] == ["operator.approvals"]
        async with GatewayClient(it.url, made["token"], client_id="phone") as phone:
            with pytest.raises(RpcError, match="scope"):
                await phone.call("tokens.list")
            listed: Any = await operator.call("tokens.list")
            (token,) = listed["tokens"]
            assert (token["name"], token["clients"]) == ("phone", 1)
            assert made["token"] not in json.dumps(listed)
            revoked = await operator.call("tokens.revoke", {"name": "phone"})
            assert revoked == {"name": "phone", "closed": 1}
            assert await end_of(phone) == "UNAUTHORIZED"
        assert await operator.call("tokens.list") == {"tokens": [], "scopes": listed["scopes"]}
    logged = [text for text in caplog.messages if text.startswith("token ")]
    created = "token 'phone' was created by tester: operator.approvals"
    assert logged == [created, "token 'phone' was revoked by tester"]
    assert made["token"] not in caplog.text


@pytest.mark.hostile
@pytest.mark.covers("GP-17")
async def test_the_secret_of_a_token_is_kept_nowhere(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        made = await it.call("tokens.create", name="phone")
        kept = _all_bytes(tmp_path)
        assert b'"phone"' in kept
        assert made["token"].encode() not in kept
        assert it.gateway.tokens.find(made["token"]) is not None


def _all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_client_that_revokes_its_own_token_gets_the_answer(tmp_path: Path) -> None:
    async with wired(tmp_path) as it, it.connect() as operator:
        made: Any = await operator.call("tokens.create", {"name": "own"})
        async with GatewayClient(it.url, made["token"], client_id="own") as client:
            revoked = await client.call("tokens.revoke", {"name": "own"})
            assert revoked["closed"] == 1
            assert await end_of(client) == "UNAUTHORIZED"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "given", "code"),
    [
        ("create", {"name": ""}, "INVALID_REQUEST name"),
        ("create", {"name": " "}, "INVALID_REQUEST name"),
        ("create", {"name": "a\nb"}, "INVALID_REQUEST name"),
        ("create", {"name": "\u202egnp"}, "INVALID_REQUEST name"),
        ("create", {"name": "x" * 101}, "INVALID_REQUEST name"),
        ("create", {"name": "local"}, "CONFLICT name"),
        ("create", {"name": "taken"}, "CONFLICT name"),
        ("create", {"name": "a", "scopes": ["root"]}, "INVALID_REQUEST scopes.0"),
        ("create", {"name": "a", "scopes": []}, "INVALID_REQUEST scopes"),
        ("create", {"name": "a", "scopes": "operator.read"}, "INVALID_REQUEST scopes"),
        ("revoke", {"name": "nobody"}, "NOT_FOUND name"),
        ("revoke", {"name": "local"}, "NOT_FOUND name"),
        ("revoke", {"name": 1}, "INVALID_REQUEST name"),
    ],
)
async def test_wrong_names_and_scopes_are_refused(
    tmp_path: Path, name: str, given: dict[str, Any], code: str
) -> None:
    async with inside(tmp_path) as it:
        await it.call("tokens.create", name="taken")
        assert (await it.code(f"tokens.{name}", **given)).partition("[")[0] == code.partition(".")[
            0
        ]
        names = [each["name"] for each in (await it.call("tokens.list"))["tokens"]]
        assert names == ["taken"]
        for each in ("list", "create", "revoke"):
            writer = it.client("operator.write", "operator.approvals")
            assert await it.code(f"tokens.{each}", writer, name="x") == "FORBIDDEN"


# ---- Health ----


@pytest.mark.covers("GP-18")
async def test_the_doctor_checks_everything_and_says_what_is_wrong(tmp_path: Path) -> None:
    servers = {"gone": {"command": "/nowhere/at-all"}}
    async with inside(tmp_path, mcp={"servers": servers}) as it:
        found = await _doctor(it)
        health = {each["what"]: each["health"] for each in found["findings"]}
        assert found["ok"] is False
        assert (health["javascript"], health["MCP gone"]) == ("ok", "problem")


async def _doctor(it: Inside) -> Any:
    results: list[Any] = []

    async def run() -> None:
        client = it.client("operator.admin")
        with anyio.fail_after(60):
            frame = await it.dispatcher.call(client, Request("1", "doctor.run"))
        results.append(frame)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(it.gateway.doctor_lock.locked)
        assert await it.code("doctor.run") == "UNAVAILABLE"
    return results[0]


@pytest.mark.covers("GP-18")
async def test_servers_are_shown_with_state_tools_and_errors(tmp_path: Path) -> None:
    raw = ["-I", "-S", str(MCP / "raw_server.py"), "good"]
    servers = {
        "gone": {"command": "/nowhere/at-all"},
        "raw": {"command": sys.executable, "args": raw},
    }
    async with inside(tmp_path, mcp={"servers": servers}) as it:
        reader = it.client("operator.read")

        async def ready() -> Any:
            found = {it["name"]: it for it in (await it.call("mcp.servers", reader))["servers"]}
            good = found["raw"]["state"] == "ready" and found["gone"]["error"]
            return found if good else None

        found = await until(ready)
        assert found["raw"]["toolCount"] == len(found["raw"]["tools"]) > 0
        assert (found["raw"]["error"], found["gone"]["state"]) == (None, "down")
        assert found["raw"]["since"] > 1_600_000_000_000
        assert (await it.call("plugins.list", reader))["plugins"] == []


# ---- The configuration as text ----


@pytest.mark.hostile
@pytest.mark.covers("GP-19")
async def test_the_text_of_the_configuration_has_its_lines_and_no_secret(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        it.configure(**SECRETS)
        text = it.config.read_text()
        it.config.write_text(text.replace("{", "{ // sk-1234567890abcdef was here", 1))
        found = await it.call("config.get")
        raw = found["raw"]
        assert "hidden-" not in raw
        assert "sk-1234567890" not in raw
        assert HIDDEN in raw
        assert "${OTHER_KEY}" in raw
        before, after = it.config.read_text().split("\n"), raw.split("\n")
        assert len(before) == len(after)
        keys = [line.partition(":")[0] for line in before if '":' in line]
        assert keys == [line.partition(":")[0] for line in after if '":' in line]
        assert '"model": "scripted/a"' in raw


@pytest.mark.hostile
@pytest.mark.covers("GP-19")
async def test_a_broken_configuration_is_shown_with_the_line_of_its_error(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        it.config.write_text(
            '{\n  gateway: {auth: {token: "hidden-5-hidden-5"}},\n  "tools": oops"hidden-6\n'
        )
        found = await it.call("config.get")
        assert found["valid"] is False
        assert found["issues"][0]["line"] >= 3
        assert "hidden-" not in json.dumps(found)
        assert found["raw"].split("\n")[1].startswith("  gateway: {auth: {token:")
        # A part of a secret that looks like a key.
        it.config.write_text(
            '{ gateway: {auth: {token: "hidden-1,hidden-2:hidden-3, a: {hidden-4: 1'
        )
        assert "hidden-" not in json.dumps(await it.call("config.get"))
        # Parts of a secret that look like comments, because a quote is missing.
        it.config.write_text('{ gateway: {auth: {token: "a/b//hidden-1 hidden-2\n/*hidden-3*/ }}}')
        assert "hidden-" not in json.dumps(await it.call("config.get"))
        it.config.write_text('{\n  tools: {codeMode: {timeoutMs: "soon"}},\n}\n')
        found = await it.call("config.get")
        assert found["issues"][0]["line"] == 2
        for text in ("", "\0\0", "[" * 100_000, '"', "/*", "x" * (2 << 20)):
            it.config.write_text(text)
            assert isinstance((await it.call("config.get"))["valid"], bool)


# ---- The log ----


@pytest.mark.covers("GP-20")
async def test_the_log_is_followed_by_number(tmp_path: Path) -> None:
    handler = logs._LineHandler(Redactor())
    log = logging.getLogger("clawmode.test")
    log.addHandler(handler)
    try:
        async with inside(tmp_path) as it:
            log.warning("one")
            first = await it.call("logs.tail", limit=1)
            assert first["lines"][0]["message"] == "one"
            assert first["next"] == first["lines"][0]["n"]
            assert (await it.call("logs.tail", after=first["next"]))["lines"] == []
            log.warning("two")
            log.error("three")
            later = await it.call("logs.tail", after=first["next"])
            assert [line["message"] for line in later["lines"]] == ["two", "three"]
            errors = await it.call("logs.tail", after=first["next"], level="error")
            assert [line["message"] for line in errors["lines"]] == ["three"]
            restarted = await it.call("logs.tail", after=2**53 - 1)
            assert restarted["lines"][-1]["message"] == "three"
            assert await it.code("logs.tail", after=-1) == "INVALID_REQUEST after"
            assert await it.code("logs.tail", after="x") == "INVALID_REQUEST after"
    finally:
        log.removeHandler(handler)


# ---- Downloads ----


@pytest.mark.covers("GP-20")
async def test_an_exported_bundle_is_downloaded_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_methods, "PART_BYTES", 100)
    agents = {"defaults": {"workspace": str(tmp_path / "work")}}
    (tmp_path / "work").mkdir()
    async with inside(tmp_path, ["Hello!"], agents=agents) as it:
        run = await it.call("agent", message="go", sessionKey="tea")
        await it.call("agent.wait", runId=run["runId"])
        made = await it.call("trajectory.export", sessionKey="tea")
        for file in made["files"]:
            data, after, part = b"", 0, dict[str, Any]()
            while after is not None:
                part = await it.call(
                    "trajectory.read", sessionKey="tea", name=made["name"], file=file, after=after
                )
                data += base64.b64decode(part["data"])
                after = part["next"]
            assert data == (Path(made["folder"]) / file).read_bytes()
            assert len(data) == part["size"]


@pytest.mark.hostile
@pytest.mark.covers("GP-20")
async def test_a_download_never_leaves_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    work = tmp_path / "work"
    bundle = work / "trajectory-exports" / "x"
    (bundle / "a").mkdir(parents=True)
    (bundle / "link").symlink_to(tmp_path / "secret")
    (bundle / "a" / "a").symlink_to(tmp_path)
    (bundle.parent / "out").symlink_to(tmp_path)
    os.mkfifo(bundle / "pipe")
    (bundle / "good").write_text("good")
    agents = {"defaults": {"workspace": str(work)}}
    async with inside(tmp_path, agents=agents) as it:
        await it.call("sessions.create", sessionKey="tea")

        async def read(name: str, file: str, **more: Any) -> str:
            given = {"sessionKey": "tea", "name": name, "file": file, **more}
            return await it.code("trajectory.read", **given)

        assert await read("x", "good") == "ok"
        assert await read("x", "good", after=2**53 - 1) == "ok"
        for name, file in (
            ("x", "link"),
            ("x", "a/secret"),
            ("x", "a/a/secret"),
            ("out", "secret"),
            ("x/../../..", "secret"),
            ("x", "../../../secret"),
            ("x", str(tmp_path / "secret")),
            ("x", "pipe"),
            ("x", "a"),
            ("x", "nothing"),
            ("nothing", "good"),
            ("x", "\0"),
        ):
            assert await read(name, file) == "NOT_FOUND name", (name, file)
        assert await read("x", "good", after=-1) == "INVALID_REQUEST after"
