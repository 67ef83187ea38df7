"""How providers are reached: what is known, what is filled in, what is imported when."""

import subprocess
import sys

import pytest
from tests.support.model_driver import answer_of, request

from clawmode.exceptions import ConfigurationError
from clawmode.models.base import Model
from clawmode.models.direct import DirectModel
from clawmode.models.providers import (
    KNOWN,
    Api,
    KeySource,
    ModelSettings,
    ProviderSettings,
    complete,
    is_local,
    make_model,
    open_provider,
)
from clawmode.testing import ScriptedModel, ScriptServer, Turn


@pytest.mark.parametrize(
    ("id", "api", "env", "local"),
    [
        ("openai", "openai-responses", "OPENAI_API_KEY", False),
        ("anthropic", "anthropic-messages", "ANTHROPIC_API_KEY", False),
        ("openrouter", "openai-completions", "OPENROUTER_API_KEY", False),
        ("ollama", "openai-completions", None, True),
        ("lmstudio", "openai-completions", None, True),
        ("vllm", "openai-completions", None, True),
        ("llamacpp", "openai-completions", None, True),
    ],
)
def test_known_providers_need_no_more_than_their_name(
    id: str, api: Api, env: str | None, local: bool
) -> None:
    made = complete(ProviderSettings(id=id))
    assert (made.api, made.local) == (api, local)
    assert made.key == (KeySource(env=env) if env else None)
    assert made.base_url.startswith("http")
    assert id in KNOWN


def test_what_is_configured_wins() -> None:
    key = KeySource(file="k")
    mine = ProviderSettings(
        id="openai", api="openai-completions", base_url="https://proxy.example/v1/", key=key
    )
    made = complete(mine)
    assert (made.api, made.base_url, made.key) == (
        "openai-completions",
        "https://proxy.example/v1",
        key,
    )


def test_a_local_server_is_not_shown_the_key_of_a_remote_one() -> None:
    assert complete(ProviderSettings(id="openai", base_url="http://10.0.0.5:8000/v1")).key is None


@pytest.mark.parametrize(
    "url", ["https://gw.example", "https://gw.example/v1", "https://gw.example/"]
)
def test_an_address_of_messages_is_understood_either_way(url: str) -> None:
    made = complete(ProviderSettings(id="gw", api="anthropic-messages", base_url=url))
    assert made.base_url == "https://gw.example"


@pytest.mark.parametrize("url", ["", "ftp://x/v1", "localhost:8000", "http://", "/v1"])
def test_an_invalid_address_is_reported_with_its_place(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        complete(ProviderSettings(id="mine", base_url=url))
    assert caught.value.path == "models.providers.mine.baseUrl"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:11434", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("192.168.1.20", True),
        ("10.1.2.3", True),
        ("169.254.1.1", True),
        ("box.local", True),
        ("host.docker.internal:1234", True),
        ("api.openai.com", False),
        ("8.8.8.8", False),
        ("local.example.com", False),
    ],
)
def test_what_is_local(host: str, local: bool) -> None:
    assert is_local(f"http://{host}/v1") == local
    made = complete(ProviderSettings(id="x", base_url=f"http://{host}/v1"))
    assert made.local == local
    said = complete(ProviderSettings(id="x", base_url=f"http://{host}/v1", local=not local))
    assert said.local != local


@pytest.mark.anyio
async def test_limits_come_from_the_settings_or_from_what_is_known() -> None:
    known = {"big": ModelSettings(context_window=12_345, max_tokens=678)}
    settings = ProviderSettings(
        id="anthropic", models=known, timeout_seconds=9, local=True, key=KeySource(value="x")
    )
    async with open_provider(settings) as provider:
        limits = provider.model("big").limits
        assert (limits.context_window, limits.max_tokens) == (12_345, 678)
        assert (limits.local, limits.timeout_seconds) == (True, 9)
        assert provider.model("claude-sonnet-5").limits.context_window >= 200_000
        assert provider.model("nobody-knows-me").limits.context_window == 200_000


@pytest.mark.anyio
async def test_models_of_a_provider_share_its_client() -> None:
    async with ScriptServer(lambda asked: Turn("Yes.")) as server:
        async with open_provider(server.settings("openai-completions")) as provider:
            for name in ("one", "two/with/slashes"):
                assert (await answer_of(provider.model(name))).model == name
        names = [it.body["model"] for it in server.requests]
    assert names == ["one", "two/with/slashes"]


@pytest.mark.anyio
@pytest.mark.parametrize("id", ["openai", "openrouter", "ollama", "vllm", "lmstudio", "llamacpp"])
async def test_known_providers_speak_their_wire(id: str) -> None:
    """By another address; names decide what the library makes of a model."""
    names = {"openai": "gpt-5", "openrouter": "anthropic/claude-sonnet-5", "ollama": "qwen3:8b"}
    api = KNOWN[id].api
    assert api is not None
    async with ScriptServer([Turn("Yes.")]) as server:
        settings = server.settings(api, id=id, key=KeySource(value="x"))
        async with make_model(settings, names.get(id, "some-model")) as model:
            answer = await answer_of(model, request(thinking="low", cache_key="k"))
    assert (answer.provider, answer.text) == (id, "Yes.")


def test_a_name_that_a_provider_cannot_have_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="openrouter/gpt-5: "):
        make_model(ProviderSettings(id="openrouter"), "gpt-5")


# ---- Imports ----


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=19, check=False
    )


def test_settings_and_scripts_do_not_load_the_libraries() -> None:
    modules = "clawmode.models.providers, clawmode.models.base, clawmode.testing"
    heavy = "{'pydantic_ai', 'openai', 'anthropic', 'httpx2'}"
    done = run(f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pydantic_ai", "openai", "anthropic"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from clawmode.exceptions import ConfigurationError
from clawmode.models.providers import ProviderSettings, make_model
try:
    make_model(ProviderSettings(id="ollama"), "x")
except ConfigurationError as error:
    print(error)
"""
    done = run(code)
    assert 'pip install "clawmode[agent]"' in done.stdout, done.stderr


def test_both_models_are_what_the_loop_wants() -> None:
    """What this proves, the type checker proves."""

    def stream_of(model: type[Model]) -> object:
        return model.stream

    assert stream_of(ScriptedModel) is not stream_of(DirectModel)
