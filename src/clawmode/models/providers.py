"""How a provider of models is reached: plain data that shows no secret, and some that is known."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from clawmode.exceptions import ConfigurationError
from clawmode.models.auth import KeySource

Api: TypeAlias = Literal["openai-completions", "openai-responses", "anthropic-messages"]
APIS: tuple[Api, ...] = ("openai-completions", "openai-responses", "anthropic-messages")

InputKind: TypeAlias = Literal["text", "image"]

LOCAL_NAMES = ("localhost", "host.docker.internal")
LOCAL_ENDINGS = (".localhost", ".local", ".lan", ".internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What is to be known about a model.

    Attributes:
        id: What the provider calls it; empty if it is called so here as well.
        context_window: Tokens, all together. None: what is known of its name.
        max_tokens: Of one answer. None: the provider's own limit.
        reasoning: Whether it can be told to think. None: what is known of its name.
        input: What it reads.
    """

    id: str = ""
    context_window: int | None = None
    max_tokens: int | None = None
    reasoning: bool | None = None
    input: tuple[InputKind, ...] = ("text", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """How to reach a provider. What is left out is filled in by `complete`.

    Attributes:
        id: What people call it, as in `<id>/<model>`.
        base_url: Up to what its API appends: `/chat/completions`, `/responses`, `/v1/messages`.
        headers: What goes with every request; may be secret.
        timeout_seconds: For the connection, and for each wait for more of an answer.
        models: By the name that people use. Others may be used as well.
        local: It runs on this machine or in this house. None: as its address looks.
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
        """Where it is, for people: without what may be a secret."""
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def _known(id: str, api: Api, base_url: str, env: str = "") -> ProviderSettings:
    key = KeySource(env=env) if env else None
    return ProviderSettings(id=id, api=api, base_url=base_url, key=key)


KNOWN: Mapping[str, ProviderSettings] = {
    it.id: it
    for it in (
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
"""What need not be configured."""


def complete(settings: ProviderSettings) -> ProviderSettings:
    """The settings with nothing left open.

    A local server gets no key that was not configured for it.

    Raises:
        ConfigurationError: The address is missing, or is none.
    """
    known = KNOWN.get(settings.id)
    base_url = (settings.base_url or (known.base_url if known else "")).rstrip("/")
    place = f"models.providers.{settings.id}.baseUrl"
    if not base_url:
        raise ConfigurationError(
            f"{place}: found nothing, and {settings.id!r} is not one of {', '.join(KNOWN)}, "
            "expected the address of its API",
            path=place,
            expected="the address of its API",
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
        # Its SDK appends `/v1/messages`, and people write the address either way.
        base_url = base_url.removesuffix("/v1")
    local = is_local(base_url) if settings.local is None else settings.local
    key = settings.key or (known.key if known and not local else None)
    return replace(settings, api=api, base_url=base_url, key=key, local=local)


def is_local(base_url: str) -> bool:
    """Whether an address leads to this machine or to its neighbours."""
    host = (urlsplit(base_url).hostname or "").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in LOCAL_NAMES or host.endswith(LOCAL_ENDINGS)
    return address.is_loopback or address.is_private or address.is_link_local
