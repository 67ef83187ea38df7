"""From the settings of a provider to its models.

Importing this loads no provider's library: `open_provider` does, when it is called. What the
settings are is `providers`' business; their names are here as well, for whoever makes models.
"""

from typing import TYPE_CHECKING

from clawmode.exceptions import ConfigurationError
from clawmode.models.providers import (
    APIS,
    KNOWN,
    Api,
    InputKind,
    ModelSettings,
    ProviderSettings,
    complete,
    is_local,
)

if TYPE_CHECKING:
    from clawmode.models.direct import DirectModel, Provider

__all__ = [
    "APIS",
    "KNOWN",
    "Api",
    "InputKind",
    "ModelSettings",
    "ProviderSettings",
    "complete",
    "is_local",
    "make_model",
    "open_provider",
]


def open_provider(settings: ProviderSettings) -> "Provider":
    """A provider whose models share one HTTP client. Imports its library, which takes seconds.

    Raises:
        ConfigurationError: The settings cannot be used, or the library is not installed.
    """
    completed = complete(settings)
    try:
        from clawmode.models.direct import Provider
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pydantic_ai", "openai", "anthropic", "tiktoken"):
            raise
        raise ConfigurationError(
            f"models need the extra `agent`, and {missing} is not installed: "
            "pip install 'clawmode[agent]'"
        ) from error
    return Provider(completed)


def make_model(settings: ProviderSettings, model_id: str) -> "DirectModel":
    """One model with a client of its own; close it with `aclose`, or use it in `async with`.

    Raises:
        ConfigurationError: The settings cannot be used, or the library is not installed.
    """
    return open_provider(settings).model(model_id)
