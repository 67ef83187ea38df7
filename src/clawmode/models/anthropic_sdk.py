"""Anthropic's messages over pydantic-ai and the SDK `anthropic`, whose import takes two seconds."""

from typing import Any

from anthropic import AsyncAnthropic
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from clawmode.models.providers import ProviderSettings


def make_library_model(
    name: str, settings: ProviderSettings, client: dict[str, Any], profile: ModelProfile
) -> Model:
    """Makes the model of pydantic-ai that sends the requests.

    Args:
        name: The provider's name of the model.
        settings: The provider.
        client: The arguments of the SDK's client.
        profile: What is known about the model, instead of what pydantic-ai guesses from its name.
    """
    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(**client, open_telemetry=False))
    return AnthropicModel(name, provider=provider, profile=profile)
