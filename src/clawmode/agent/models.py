"""`ModelPool`: models by name, by the providers of a configuration, each of them opened once."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from clawmode.config.file import variable_name
from clawmode.config.resolve import AuthProfile, Configuration, ProviderEntry
from clawmode.config.resolve import KeySource as KeyEntry
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import Model, ModelName
from clawmode.models.providers import (
    KNOWN,
    KeySource,
    ModelSettings,
    ProviderSettings,
    complete,
    load_sdk,
    open_provider,
)

if TYPE_CHECKING:
    from clawmode.models.direct import Provider


MAX_FOUND = 100


class ModelPool:
    """Finds models by name. Used inside of `async with`.

    Args:
        configuration: The configuration with the providers.
        given: Model objects by `provider/model`; `provider/*` is any model of a provider.
    """

    def __init__(
        self, configuration: Configuration, given: Mapping[str, Model] | None = None
    ) -> None:
        self._configuration = configuration
        self._given = dict(given or {})
        self._providers: dict[str, Provider] = {}
        self._found: dict[str, Model] = {}
        self._retired: list[Provider] = []

    async def __aenter__(self) -> "ModelPool":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._retire()
        while self._retired:
            await self._retired.pop().aclose()

    def over(self, configuration: Configuration) -> "ModelPool":
        """Returns a pool with the same model objects, and the providers of a configuration."""
        return ModelPool(configuration, self._given)

    def change(self, configuration: Configuration) -> None:
        """Uses another configuration from now on. Models that were found remain usable."""
        before, self._configuration = self._configuration, configuration
        if (before.models, before.auth) != (configuration.models, configuration.auth):
            self._retire()

    def _retire(self) -> None:
        # Not closed yet: runs in progress may use them.
        self._retired += self._providers.values()
        self._providers.clear()
        self._found.clear()

    async def prepare(self, names: Iterable[str]) -> None:
        """Imports the libraries that `find` needs in a thread, because that takes seconds."""
        for name in names:
            with suppress(ConfigurationError):  # `find` raises the same error
                found = None if name in self._found else self.settings(name)
                if found is not None and found.api is not None:
                    await anyio.to_thread.run_sync(load_sdk, found.api)

    def find(self, text: str) -> Model:
        """Returns the model with a name, `provider/model`.

        Raises:
            ConfigurationError: The name is invalid, or its provider is unknown or unusable.
        """
        if text not in self._found:
            if len(self._found) >= MAX_FOUND:  # clients may name any model
                self._found.clear()
            name = _parse(text)
            given = self._find_given(name)
            if given is None and name.provider not in self._providers:
                self._providers[name.provider] = open_provider(self._settings(name.provider))
            self._found[text] = given or self._providers[name.provider].model(name.model)
        return self._found[text]

    def settings(self, text: str) -> ProviderSettings | None:
        """Returns the settings of a model's provider; None if the model is an object.

        Imports nothing, unlike `find`.

        Raises:
            ConfigurationError: The name is invalid, or its provider is unknown or unusable.
        """
        name = _parse(text)
        return None if self._find_given(name) else complete(self._settings(name.provider))

    def provider(self, provider: str) -> ProviderSettings | None:
        """Returns the settings of a provider; None if its models are objects.

        Raises:
            ConfigurationError: The provider is unknown or unusable.
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
        profiles = self._configuration.auth.profiles.values()
        profile = next((it for it in profiles if it.provider == provider), None)
        return provider_settings(provider, entry or ProviderEntry(), profile)


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
    """Converts a provider of the configuration to the settings that models are opened with.

    Raises:
        ConfigurationError: The key has no source.
    """
    models = {
        it.id: ModelSettings(
            id=it.id,
            context_window=it.context_window,
            max_tokens=it.max_tokens,
            reasoning=it.reasoning,
            **({} if it.input is None else {"input": it.input}),
        )
        for it in entry.models
    }
    key = None
    if entry.api_key:
        key = _literal(entry.api_key)
    elif entry.auth is not None:
        key = _source(entry.auth)
    elif profile is not None:
        key = _literal(profile.key) if profile.key else _source(profile)
    return ProviderSettings(
        id=provider,
        api=entry.api,
        base_url=entry.base_url or "",
        key=key,
        headers=entry.headers,
        timeout_seconds=entry.timeout_seconds,
        models=models,
        local=entry.local,
    )


def _literal(text: str) -> KeySource:
    """Returns the source of a key in the file: its text, or the variable that it names."""
    named = variable_name(text)
    return KeySource(env=named) if named else KeySource(value=text)


def _source(entry: KeyEntry) -> KeySource:
    given: dict[str, Any] = {"env": entry.env, "file": entry.file, "command": entry.command}
    return KeySource(**{key: value for key, value in given.items() if value})
