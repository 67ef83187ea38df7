"""Another configuration without a restart: what it changes, what waits, and what it never does."""

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.gateway_inside import Inside, Refused, echo, events, inside
from tests.support.waiting import Gate, until

from clawmode.app.loading import agree
from clawmode.gateway.reload import reload_at_signal
from clawmode.testing import Turn, call

pytestmark = pytest.mark.anyio

NOTHING: dict[str, Any] = {"applied": [], "needsRestart": [], "warnings": []}


async def tools(it: Inside) -> set[str]:
    found = await it.call("tools.effective", sessionKey="main")
    return {tool["name"] for tool in found["tools"]}


async def test_a_file_that_is_as_it_was_changes_nothing(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        assert await it.call("config.reload") == NOTHING


async def test_the_policy_and_code_mode_of_new_runs_change(tmp_path: Path) -> None:
    async with inside(tmp_path, tools=[echo()]) as it:
        assert "echo" in await tools(it)
        it.configure(tools={"deny": ["echo"], "codeMode": True})
        assert (await it.call("config.reload"))["applied"] == ["tools"]
        assert "echo" not in await tools(it)
        assert (await it.call("tools.effective", sessionKey="main"))["codeMode"]
        refused = await it.call("tools.invoke", name="echo")
        assert refused["error"]["code"] == "denied"


async def test_agents_and_models_change(tmp_path: Path) -> None:
    async with inside(tmp_path, [Turn("hello")]) as it:
        assert await it.code("skills.list", agentId="bob") == "INVALID_REQUEST agentId"
        listed = [{"id": "bob", "default": True, "name": "Bob"}]
        providers = {"own": {"baseUrl": "http://localhost:1/", "models": [{"id": "m"}]}}
        it.configure(agents={"list": listed}, models={"providers": providers})
        assert (await it.call("config.reload"))["applied"] == ["agents", "models"]
        assert (await it.call("agents.list"))["defaultId"] == "bob"
        assert "own/m" in {model["id"] for model in (await it.call("models.list"))["models"]}
        run = await it.call("agent", message="go")
        assert run["sessionKey"] == "agent:bob:main"


async def environment(it: Inside) -> set[str]:
    """The variables that a command sees."""
    done = await it.call("tools.invoke", name="exec", args={"command": "env"})
    return {line.partition("=")[0] for line in done["output"]["output"].splitlines()}


@pytest.mark.covers("S-9")
async def test_keys_that_a_configuration_names_stay_hidden_from_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PROVIDER_KEY_X": "first-lab-key",
        "COPY_OF_IT": "Token first-lab-key",  # a variant: the same value under another name
        "CHANNEL_WORD": "second-word",
        "LATER_WORD": "third-word",
        "PLAIN": "tea",
    }.items():
        monkeypatch.setenv(name, value)
    lab = {"baseUrl": "http://localhost:1/", "models": [{"id": "m"}]}
    providers = {"lab": {**lab, "auth": {"env": "PROVIDER_KEY_X"}}}
    channels = {"c": {"enabled": False, "url": "http://localhost:1/", "secret": "${CHANNEL_WORD}"}}
    async with inside(tmp_path, models={"providers": providers}, channels=channels) as it:
        seen = await environment(it)
        assert {"PLAIN", "LATER_WORD", "PATH", "HOME"} <= seen
        assert seen.isdisjoint({"PROVIDER_KEY_X", "COPY_OF_IT", "CHANNEL_WORD"})
        it.configure(models={"providers": {"lab": {**lab, "auth": {"env": "LATER_WORD"}}}})
        await it.call("config.reload")
        seen = await environment(it)
        assert "PLAIN" in seen
        # A variant: the key that was in use before the reload is still a secret.
        assert seen.isdisjoint({"PROVIDER_KEY_X", "COPY_OF_IT", "LATER_WORD"})


async def test_the_rules_for_commands_change(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        args = {"command": "echo tea"}
        assert (await it.call("tools.invoke", name="exec", args=args))["ok"]
        it.configure(tools={"exec": {"security": "deny"}})
        await it.call("config.reload")
        refused = await it.call("tools.invoke", name="exec", args=args)
        assert refused["error"]["code"] == "blocked"


async def test_queue_diagnostics_and_jobs_change(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        job = {"id": "tea", "message": "Make tea.", "cron": "0 8 * * *"}
        it.configure(
            messages={"queue": {"mode": "collect"}},
            diagnostics={"stuckSessionWarnMs": 5_000},
            cron={"jobs": [job], "maxConcurrentRuns": 3},
        )
        done = await it.call("config.reload")
        assert done["applied"] == ["messages", "diagnostics", "cron"]
        assert it.gateway.host.inbox._queue.mode == "collect"
        assert it.gateway.host.inbox._slash.queue.mode == "collect"
        assert it.gateway.watch is not None
        assert it.gateway.watch.watchdog.warn_seconds == 5
        assert it.gateway.scheduler._max == 3
        (listed,) = (await it.call("cron.list"))["jobs"]
        assert (listed["id"], listed["configured"]) == ("tea", True)


async def test_what_needs_a_restart_is_named_until_there_was_one(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        it.configure(
            gateway={"maxClients": 1},
            channels={"hook": {"secret": "s" * 20}},
            mcpServers={"x": {"command": "x"}},
            plugins={"enabled": False, "load": {"paths": ["/nowhere"]}},
            hooks={"internal": {"enabled": False}},
            agents={"defaults": {"maxConcurrent": 3}},
            cron={"enabled": False},
            diagnostics={"enabled": False},
        )
        for _ in range(2):
            done = await it.call("config.reload")
            assert done["applied"] == []
            assert done["needsRestart"] == [
                *("gateway", "channels", "plugins", "mcpServers", "hooks"),
                *("agents.defaults.maxConcurrent", "cron.enabled", "diagnostics.enabled"),
            ]
        it.client("operator.read")
        it.client("operator.read")  # more than one: the old limit holds
        assert (await it.call("cron.status"))["enabled"]


@pytest.mark.parametrize(
    "text",
    [
        "{ tools: 1, messages: { queue: { cap: 3 } } }",
        "{",
        '{ cron: { jobs: [{ id: "a", message: "b", cron: "never" }] }, messages: { queue: {} } }',
    ],
)
async def test_a_configuration_with_errors_changes_nothing(tmp_path: Path, text: str) -> None:
    async with inside(tmp_path, messages={"queue": {"cap": 7}}) as it:
        before = it.gateway.host.setup.configuration
        it.config.write_text(text)
        with pytest.raises(Refused) as refused:
            await it.call("config.reload")
        assert refused.value.code == "INVALID_REQUEST"
        assert refused.value.details["issues"]
        assert it.gateway.host.setup.configuration is before
        assert it.gateway.host.inbox._queue.cap == 7
        assert not (await it.call("config.get"))["valid"]


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        it.config.unlink()
        assert await it.code("config.reload") == "INVALID_REQUEST"


async def test_a_live_run_keeps_the_configuration_that_it_started_with(tmp_path: Path) -> None:
    gate = Gate()
    script = [Turn(call("slow", {})), Turn(call("slow", {})), Turn("done")]
    async with inside(tmp_path, script, tools=[gate.tool], rules={"codeMode": False}) as it:
        run = await it.call("agent", message="go")
        await gate.entered.wait()
        it.configure(tools={"deny": ["slow"], "codeMode": True})
        await it.call("config.reload")
        gate.open.set()
        waited = await it.call("agent.wait", runId=run["runId"], timeoutMs=10_000)
        assert waited["status"] == "ok"
        assert it.read_last() == "slow is done"


async def test_new_secrets_are_struck_out_and_old_ones_still_are(tmp_path: Path) -> None:
    def provider(key: str) -> dict[str, Any]:
        return {"providers": {"own": {"baseUrl": "http://localhost:1/", "apiKey": key}}}

    async with inside(tmp_path, models=provider("first-secret")) as it:
        it.configure(models=provider("second-secret"))
        await it.call("config.reload")
        known = it.gateway.host.runtime._shared.secrets
        assert {"first-secret", "second-secret"} <= set(known)


@pytest.mark.covers("N-39")
async def test_sighup_reloads_and_survives_a_bad_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clawmode.gateway")
    async with inside(tmp_path) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(reload_at_signal, it.gateway)
        await anyio.wait_all_tasks_blocked()
        it.config.write_text("{")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "SIGHUP" in caplog.text)
        assert "the configuration has 1 error; nothing was changed" in caplog.text
        line = next(text for text in caplog.messages if text.startswith(str(it.config)))
        assert ":1:1: unclosed object" in line
        assert "[{" not in caplog.text
        it.configure(messages={"queue": {"cap": 3}}, gateway={"port": 1})
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: it.gateway.host.inbox._queue.cap == 3)
        assert caplog.messages[-1].endswith("changed: messages; needs a restart: gateway")
        tasks.cancel_scope.cancel()
        assert events(it.admin, "shutdown") == []


async def test_work_beside_that_fails_leaves_the_gateway_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("it is broken")

    async with inside(tmp_path) as it:
        it.gateway.begin(fail)
        await until(lambda: "it is broken" in caplog.text)
        assert (await it.call("health"))["ok"]


@pytest.mark.covers("S-1")
async def test_a_file_that_nobody_named_is_read_again_once_its_user_has_agreed_to_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New attack: an update of a downloaded folder takes the rules of a running gateway away."""
    monkeypatch.setenv("CLAWMODE_STATE", str(tmp_path / "state"))
    async with inside(tmp_path, tools=[echo()], rules={"approve": "never"}) as it:
        setup = replace(it.gateway.host.setup, found_here=True)
        it.gateway.host = replace(it.gateway.host, setup=setup)
        it.configure(tools={"approve": "always"})
        with pytest.raises(Refused) as refused:
            await it.call("config.reload")
        assert "run `clawmode config trust`" in str(refused.value.details["report"])
        assert not (await it.call("tools.invoke", name="echo"))["ok"]
        agree(str(it.config))
        await it.call("config.reload")
        assert (await it.call("tools.invoke", name="echo"))["ok"]
