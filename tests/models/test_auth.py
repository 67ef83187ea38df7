"""Keys: where they come from, when they are read, and that nobody sees them."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.model_driver import answer_of

from clawmode.exceptions import ConfigurationError
from clawmode.models import auth
from clawmode.models.auth import Credential
from clawmode.models.base import ModelError
from clawmode.models.providers import APIS, Api, KeySource, ProviderSettings, make_model
from clawmode.testing import ScriptServer, Turn

every_api = pytest.mark.parametrize("api", APIS)

KEY = "the-very-secret-key"


def key_file(folder: Path, text: str = KEY, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return str(path)


def printing(code: str) -> KeySource:
    return KeySource(command=(sys.executable, "-c", code))


async def read(source: KeySource) -> str | None:
    return await Credential("acme", source).get()


async def refused(source: KeySource) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await read(source)
    assert caught.value.kind == "auth"
    assert KEY not in str(caught.value)
    assert str(caught.value).startswith("acme needs a key: ")
    return caught.value


@pytest.mark.anyio
async def test_every_source_gives_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", f" {KEY}\n")
    assert await read(KeySource(env="ACME_KEY")) == KEY
    assert await read(KeySource(file=key_file(tmp_path, f"{KEY}\n"))) == KEY
    monkeypatch.setenv("HOME", str(tmp_path))
    assert await read(KeySource(file="~/key")) == KEY
    assert await read(printing(f"print({KEY!r})")) == KEY
    assert await read(KeySource(value=KEY)) == KEY
    assert await Credential("acme", None).get() is None


@pytest.mark.anyio
async def test_a_missing_key_is_reported_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACME_KEY", raising=False)
    assert "the environment variable ACME_KEY is not set" in str(
        await refused(KeySource(env="ACME_KEY"))
    )
    monkeypatch.setenv("ACME_KEY", "  ")
    assert "ACME_KEY is not set" in str(await refused(KeySource(env="ACME_KEY")))
    gone = str(tmp_path / "gone")
    assert f"the file {gone} cannot be read: No such file" in str(
        await refused(KeySource(file=gone))
    )
    assert "is empty" in str(await refused(KeySource(file=key_file(tmp_path, "\n"))))
    assert "cannot be run" in str(await refused(KeySource(command=("/no/such/program",))))
    # Neither what it prints nor its arguments are anybody's business.
    failing = f"import sys; print({KEY!r}); print({KEY!r}, file=sys.stderr); sys.exit(3)"
    assert "failed with exit code 3" in str(await refused(printing(failing)))


@pytest.mark.anyio
@pytest.mark.parametrize("text", [f"{KEY}\nand more", "ключ", "x" * 20_000, "a\x00b"])
async def test_what_cannot_be_a_key_is_refused(tmp_path: Path, text: str) -> None:
    """It would become a header, or break one."""
    assert "one line of ASCII" in str(await refused(KeySource(file=key_file(tmp_path, text))))


@pytest.mark.anyio
async def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "COMMAND_SECONDS", 0.2)
    with anyio.fail_after(10):
        error = await refused(printing("import signal; signal.pause()"))
    assert "did not exit within" in str(error)


@pytest.mark.anyio
async def test_a_command_is_no_shell(tmp_path: Path) -> None:
    target = tmp_path / "made"
    code = "import sys; print('-'.join(sys.argv[1:]).replace(' ', '_').replace('/', '_'))"
    source = KeySource(command=(sys.executable, "-c", code, "$HOME", f"; touch {target}"))
    assert str(await read(source)).startswith("$HOME-;_touch_")
    assert not target.exists()


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
async def test_a_file_that_others_can_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: int
) -> None:
    assert await read(KeySource(file=key_file(tmp_path, mode=mode))) == KEY
    assert len(caplog.records) == warned
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert KEY not in record.getMessage()
        assert f"mode {mode:o}" in record.getMessage()


def test_a_key_has_one_source() -> None:
    sources: list[Callable[[], KeySource]] = [
        KeySource,
        lambda: KeySource(env="A", value=KEY),
        lambda: KeySource(file="a", command=("b",)),
    ]
    for make in sources:
        with pytest.raises(ConfigurationError) as caught:
            make()
        assert KEY not in str(caught.value)


def test_nothing_shows_the_key() -> None:
    source = KeySource(value=KEY)
    settings = ProviderSettings(
        id="acme", base_url=f"http://u:{KEY}@h/v1", key=source, headers={"x": KEY}
    )
    for thing in (source, settings, Credential("acme", source)):
        assert KEY not in repr(thing)
        assert KEY not in str(thing)
    assert settings.place == "http://h/v1"


# ---- On the wire ----


@pytest.mark.anyio
@every_api
async def test_the_key_goes_where_the_api_wants_it_and_nowhere_else(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-this-one")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "nor-this-one")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "nor-that-one")
    async with ScriptServer([Turn("Yes."), Turn("Yes.")]) as server:
        async with make_model(server.settings(api, key=KeySource(value=KEY)), "any") as model:
            await answer_of(model)
            assert KEY not in repr(model)
        async with make_model(server.settings(api), "any") as model:
            await answer_of(model)
        with_key, without = server.requests
    assert with_key.headers["authorization"] == f"Bearer {KEY}"
    assert ("x-api-key" in with_key.headers) == (api == "anthropic-messages")
    assert not {"authorization", "x-api-key"} & without.headers.keys()
    for it in server.requests:
        assert "this-one" not in str(it.headers)
        assert "that-one" not in str(it.headers)


@pytest.mark.anyio
@every_api
async def test_headers_that_were_configured_win(api: Api) -> None:
    async with ScriptServer([Turn("Yes.")]) as server:
        settings = replace(
            server.settings(api, key=KeySource(value=KEY)),
            headers={"Authorization": "Basic abc", "X-Extra": "1"},
        )
        async with make_model(settings, "any") as model:
            await answer_of(model)
        headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-extra"]) == ("Basic abc", "1")


@pytest.mark.anyio
@every_api
async def test_a_missing_key_is_no_trouble_of_the_connection(api: Api) -> None:
    async with ScriptServer([Turn("Yes.")]) as server:
        settings = server.settings(api, key=KeySource(env="CLAWMODE_TEST_NO_SUCH_KEY"))
        async with make_model(settings, "any") as model:
            with pytest.raises(ModelError) as caught:
                await answer_of(model)
        assert server.requests == []
    assert caught.value.kind == "auth"
    assert "CLAWMODE_TEST_NO_SUCH_KEY" in str(caught.value)


def counting(folder: Path, keys: list[str]) -> tuple[KeySource, Path]:
    """A command that prints one key after the other, and counts."""
    log = folder / "log"
    log.write_text("", "ascii")
    code = (
        f"log = open({str(log)!r}, 'a+'); log.seek(0); n = len(log.read()); log.write('x'); "
        f"print({keys!r}[min(n, {len(keys) - 1})])"
    )
    return printing(code), log


@pytest.mark.anyio
async def test_a_key_is_read_when_it_is_needed_and_only_once(tmp_path: Path) -> None:
    source, log = counting(tmp_path, [KEY])
    async with ScriptServer(lambda asked: "Yes.", key=KEY) as server:
        async with make_model(server.settings("openai-responses", key=source), "any") as model:
            assert log.read_text("ascii") == ""
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(answer_of, model)
            await answer_of(model)
    assert log.read_text("ascii") == "x"


@pytest.mark.anyio
@every_api
async def test_a_key_that_is_refused_is_read_again_once(api: Api, tmp_path: Path) -> None:
    source, log = counting(tmp_path, ["old", KEY])
    async with ScriptServer([Turn("Yes.")] * 2, key=KEY) as server:
        async with make_model(server.settings(api, key=source), "any") as model:
            assert (await answer_of(model)).text == "Yes."
            assert (await answer_of(model)).text == "Yes."
    assert log.read_text("ascii") == "xx"


@pytest.mark.anyio
@every_api
async def test_a_key_that_stays_wrong_is_not_tried_for_ever(api: Api, tmp_path: Path) -> None:
    for keys, reads in ((["old"], 2), (["old", "older", "oldest"], 2)):
        source, log = counting(tmp_path, keys)
        async with ScriptServer([Turn("Yes.")], key=KEY) as server:
            async with make_model(server.settings(api, key=source), "any") as model:
                with pytest.raises(ModelError) as caught:
                    await answer_of(model)
        assert (caught.value.kind, caught.value.status) == ("auth", 401)
        assert len(log.read_text("ascii")) == reads


@pytest.mark.anyio
async def test_many_refused_at_once_read_the_key_again_once(tmp_path: Path) -> None:
    source, log = counting(tmp_path, ["old", KEY])
    async with ScriptServer(lambda asked: "Yes.", key=KEY) as server:
        async with make_model(server.settings("openai-completions", key=source), "any") as model:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await answer_of(model))

            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(ask)
    assert [it.text for it in answers] == ["Yes."] * 8
    assert log.read_text("ascii") == "xx"
