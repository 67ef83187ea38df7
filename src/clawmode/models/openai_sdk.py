"""OpenAI's chat completions and Responses over pydantic-ai and the SDK `openai`.

The import takes a second.
"""

from typing import Any

from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from clawmode.models.providers import ProviderSettings


def make_library_model(
    name: str, settings: ProviderSettings, client: dict[str, Any], profile: ModelProfile
) -> Model:
    """Makes the model of pydantic-ai that sends the requests. See `models.anthropic_sdk`."""
    openai = AsyncOpenAI(**client)
    if settings.id == "openrouter" and settings.api == "openai-completions":
        from pydantic_ai.models.openrouter import OpenRouterModel
        from pydantic_ai.providers.openrouter import OpenRouterProvider

        # Chat completions with additions: thinking of other providers, with their signatures.
        router = OpenRouterProvider(openai_client=openai)
        return OpenRouterModel(name, provider=router, profile=profile)
    if settings.id == "openai":
        provider = OpenAIProvider(openai_client=openai)
    else:
        provider = OpenAICompatibleProvider(settings.id, openai_client=openai)
    kind = OpenAIChatModel if settings.api == "openai-completions" else OpenAIResponsesModel
    return kind(name, provider=provider, profile=profile)
