"""Settings of model providers, the providers that need no configuration, and `open_provider`.

Importing this module loads no provider SDK: `open_provider` imports one when it is called.
"""

import gc
import ipaddress
from collections.abc import Mapping
from dataclasses import field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from clawmode.exceptions import ConfigurationError, MissingExtra, naming_extras
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.models.direct import DirectModel, Provider

Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]
APIS: tuple[Api, ...] = ("openai-completions", "openai-responses", "anthropic-messages")

InputKind: TypeAlias = Literal["text", "image"]

LOCAL_NAMES = ("localhost", "host.docker.internal")
LOCAL_ENDINGS = (".localhost", ".local", ".lan", ".internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """Where an API key comes from. Exactly one attribute is set.

    Attributes:
        env: The name of an environment variable.
        file: The path of a file that contains only the key; `~` is expanded.
        command: A program that prints the key, and its arguments. It is run without a shell.
        value: The key itself.
    """

    env: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    value: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        given = [name for name in ("env", "file", "command", "value") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ConfigurationError(
                f"a key has one source: env, file, command or value; found {found}",
                expected="one of env, file, command, value",
            )

    def __str__(self) -> str:
        """Describes the source for people, without the key."""
        if self.env:
            return f"the environment variable {self.env}"
        if self.file:
            return f"the file {self.file}"
        # Only the program: its arguments may contain secrets.
        return f"the command {self.command[0]}" if self.command else "the configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of one model of a provider.

    Attributes:
        id: The provider's name for the model; empty if both names are the same.
        context_window: The size of the context window in tokens. None: looked up by name.
        max_tokens: The limit of one answer in tokens. None: the provider's own limit.
        reasoning: True if the model supports thinking levels. None: looked up by name.
        input: The kinds of content that the model reads.
    """

    id: str = ""
    context_window: int | None = None
    max_tokens: int | None = None
    reasoning: bool | None = None
    input: tuple[InputKind, ...] = ("text", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """How to reach a provider. `complete` fills in what is missing.

    Attributes:
        id: The provider's name, as in `<id>/<model>`.
        base_url: The address to which the API's path is appended: `/chat/completions`,
            `/responses` or `/v1/messages`.
        headers: Headers of every request; the values may be secret.
        timeout_seconds: The time limit for connecting, and for each wait for more of an answer.
        models: Settings by model name. Models without an entry can be used too.
        local: True if the provider runs on this machine or network. None: judged by the address.
    """

    id: str
    api: Api | None = None
    base_url: str = field(default="", repr=False)
    key: KeySource | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float | None = None
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    local: bool | None = None

    @property
    def place(self) -> str:
        """The address for people, without user, password and query, which may be secret."""
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def _known(id: str, api: Api, base_url: str, env: str = "") -> ProviderSettings:
    key = KeySource(env=env) if env else None
    return ProviderSettings(id=id, api=api, base_url=base_url, key=key)


KNOWN: Mapping[str, ProviderSettings] = {
    provider.id: provider
    for provider in (
        _known("openai", "openai-responses", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        _known("anthropic", "anthropic-messages", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        _known(
            "openrouter", "openai-completions", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"
        ),
        _known("ollama", "openai-completions", "http://127.0.0.1:11434/v1"),
        _known("lmstudio", "openai-completions", "http://127.0.0.1:1234/v1"),
        _known("vllm", "openai-completions", "http://127.0.0.1:8000/v1"),
        _known("llamacpp", "openai-completions", "http://127.0.0.1:8080/v1"),
    )
}
"""Providers that need no configuration, by name."""


def complete(settings: ProviderSettings) -> ProviderSettings:
    """Returns the settings with the API, address, key and `local` filled in.

    Raises:
        ConfigurationError: The address is missing or invalid.
    """
    known = KNOWN.get(settings.id)
    base_url = (settings.base_url or (known.base_url if known else "")).rstrip("/")
    place = f"models.providers.{settings.id}.baseUrl"
    if not base_url:
        raise ConfigurationError(
            f"{place} is required, because {settings.id!r} is not one of {', '.join(KNOWN)}: "
            "set it to the address of the provider's API",
            path=place,
            expected="the address of the provider's API",
        )
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigurationError(
            f"{place}: expected an http or https address",
            path=place,
            expected="an http or https address",
        )
    api = settings.api or (known.api if known else None) or "openai-completions"
    if api == "anthropic-messages":
        # Its SDK appends `/v1/messages`, and users write the address with or without `/v1`.
        base_url = base_url.removesuffix("/v1")
    local = is_local(base_url) if settings.local is None else settings.local
    # A local server must not receive a cloud provider's key that was not configured for it.
    key = settings.key or (known.key if known and not local else None)
    return replace(settings, api=api, base_url=base_url, key=key, local=local)


def is_local(base_url: str) -> bool:
    """True if the address is on this machine or in a private network."""
    host = (urlsplit(base_url).hostname or "").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in LOCAL_NAMES or host.endswith(LOCAL_ENDINGS)
    return address.is_loopback or address.is_private or address.is_link_local


def open_provider(settings: ProviderSettings) -> "Provider":
    """Opens a provider whose models share one HTTP client. The SDK's import takes seconds.

    Raises:
        ConfigurationError: The settings are invalid, or the SDK is not installed.
    """
    completed = complete(settings)
    assert completed.api is not None
    load_sdk(completed.api)
    from clawmode.models.direct import Provider

    return Provider(completed)


def load_sdk(api: Api) -> Any:
    """Imports what the models of an API need, and nothing of the other APIs: it takes seconds.

    Returns:
        The module with `make_library_model`.

    Raises:
        ConfigurationError: The SDK is not installed.
    """
    sdk = "anthropic_sdk" if api == "anthropic-messages" else "openai_sdk"
    collects = gc.isenabled()
    gc.disable()  # thousands of modules are imported, none of which is garbage: 15 % of the time
    try:
        with naming_extras():
            import_module("clawmode.models.direct")
            return import_module(f"clawmode.models.{sdk}")
    except MissingExtra as error:
        text = f"models need the extra `{error.extra}`: {error}"
        raise ConfigurationError(text) from None
    finally:
        if collects:
            gc.enable()


def make_model(settings: ProviderSettings, model_id: str) -> "DirectModel":
    """Opens one model with its own client; close it with `aclose`, or use it in `async with`.

    Raises:
        ConfigurationError: The settings are invalid, or the SDK is not installed.
    """
    return open_provider(settings).model(model_id)
