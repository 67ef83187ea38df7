"""The models that a configuration names, each provider opened once."""

import importlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clawmode.config.resolve import AuthProfile, Configuration, ProviderEntry
from clawmode.config.resolve import KeySource as KeyEntry
from clawmode.config.variables import variable
from clawmode.exceptions import ConfigurationError
from clawmode.models.auth import KeySource
from clawmode.models.base import Model, ModelName
from clawmode.models.settings import (
    KNOWN,
    ModelSettings,
    ProviderSettings,
    complete,
    open_provider,
)

if TYPE_CHECKING:
    from clawmode.models.direct import Provider


LIBRARY = "clawmode.models.direct"


class ModelPool:
    """Finds models by name. Used inside of `async with`.

    Args:
        configuration: Where providers are.
        given: Models that are there already, by `provider/model`; `provider/*` is any of it.
    """

    def __init__(
        self, configuration: Configuration, given: Mapping[str, Model] | None = None
    ) -> None:
        self._configuration = configuration
        self._given = dict(given or {})
        self._providers: dict[str, Provider] = {}
        self._retired: list[Provider] = []

    async def __aenter__(self) -> "ModelPool":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._retire()
        while self._retired:
            await self._retired.pop().aclose()

    def over(self, configuration: Configuration) -> "ModelPool":
        """The models that were given, beside those of another configuration."""
        return ModelPool(configuration, self._given)

    def change(self, configuration: Configuration) -> None:
        """Looks models up in another configuration from now on; those that were found stay."""
        before, self._configuration = self._configuration, configuration
        if (before.models, before.auth) != (configuration.models, configuration.auth):
            self._retire()

    def _retire(self) -> None:
        """Open providers are not used any more, but by runs that have them."""
        self._retired += self._providers.values()
        self._providers.clear()

    async def prepare(self) -> None:
        """Loads what `find` needs, off the event loop: for seconds nobody would be served."""
        if not self._given and LIBRARY not in sys.modules:
            with suppress(ImportError):  # `find` says what is missing
                await anyio.to_thread.run_sync(importlib.import_module, LIBRARY)

    def find(self, text: str) -> Model:
        """A model by its name.

        Raises:
            ConfigurationError: The name is none, or its provider cannot be used.
        """
        name = _parse(text)
        given = self._find_given(name)
        if given is not None:
            return given
        if name.provider not in self._providers:
            self._providers[name.provider] = open_provider(self._settings(name.provider))
        return self._providers[name.provider].model(name.model)

    def settings(self, text: str) -> ProviderSettings | None:
        """How the provider of a model is reached; None if the model was given. Imports nothing.

        Raises:
            ConfigurationError: The name is none, or its provider cannot be used.
        """
        name = _parse(text)
        return None if self._find_given(name) else complete(self._settings(name.provider))

    def provider(self, provider: str) -> ProviderSettings | None:
        """The same for a provider.

        Raises:
            ConfigurationError: The provider is not known, or cannot be used.
        """
        return None if f"{provider}/*" in self._given else complete(self._settings(provider))

    def _find_given(self, name: ModelName) -> Model | None:
        return self._given.get(str(name)) or self._given.get(f"{name.provider}/*")

    def _settings(self, provider: str) -> ProviderSettings:
        entry = self._configuration.models.providers.get(provider)
        if entry is None and provider not in KNOWN:
            known = ", ".join(sorted({*KNOWN, *self._configuration.models.providers}))
            raise ConfigurationError(
                f"there is no provider {provider!r}, expected one of {known}",
                path="models.providers",
                expected=f"one of {known}",
            )
        return provider_settings(provider, entry or ProviderEntry(), self._profile(provider))

    def _profile(self, provider: str) -> AuthProfile | None:
        profiles = self._configuration.auth.profiles.values()
        return next((each for each in profiles if each.provider == provider), None)


def _parse(text: str) -> ModelName:
    try:
        return ModelName.parse(text)
    except ValueError as error:
        expected = 'provider/model, such as "openai/gpt-4o"'
        raise ConfigurationError(
            f"{error}, expected {expected}", path="agents.defaults.model", expected=expected
        ) from None


def provider_settings(
    provider: str, entry: ProviderEntry, profile: AuthProfile | None = None
) -> ProviderSettings:
    """A provider of the configuration, as the adapter wants it.

    Raises:
        ConfigurationError: Its key has no source.
    """
    models = {
        each.id: ModelSettings(
            id=each.id,
            context_window=each.context_window,
            max_tokens=each.max_tokens,
            reasoning=each.reasoning,
            **({} if each.input is None else {"input": each.input}),
        )
        for each in entry.models
    }
    return ProviderSettings(
        id=provider,
        api=entry.api,
        base_url=entry.base_url or "",
        key=_key(entry, profile),
        headers=entry.headers,
        timeout_seconds=entry.timeout_seconds,
        models=models,
        local=entry.local,
    )


def _key(entry: ProviderEntry, profile: AuthProfile | None) -> KeySource | None:
    if entry.api_key:
        return _literal(entry.api_key)
    if entry.auth is not None:
        return _source(entry.auth)
    if profile is None:
        return None
    return _literal(profile.key) if profile.key else _source(profile)


def _literal(text: str) -> KeySource:
    """A key as it stands in the file: itself, or the variable that it names."""
    named = variable(text)
    return KeySource(env=named) if named else KeySource(value=text)


def _source(entry: KeyEntry) -> KeySource:
    given: dict[str, Any] = {"env": entry.env, "file": entry.file, "command": entry.command}
    return KeySource(**{key: value for key, value in given.items() if value})
