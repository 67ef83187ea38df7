"""`Provider` and `DirectModel`: models of real providers, over pydantic-ai's `direct` layer.

Three APIs are supported: OpenAI's chat completions and Responses, and Anthropic's messages; with
these, every server that implements one of them. The SDKs' retries are off: the agent loop retries.
Importing this module takes a second, and the SDK of an API another one or two: `open_provider`
imports this module, and only a model of an API imports its SDK.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from anyio.abc import AsyncResource
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    InstructionPart,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.tools import ToolDefinition as TheirTool

from clawmode import __version__
from clawmode.exceptions import ConfigurationError
from clawmode.messages import AssistantMessage, ToolCall
from clawmode.models.auth import Credential
from clawmode.models.base import (
    CallStart,
    Chunk,
    MessageEnd,
    ModelError,
    ModelEvent,
    ModelLimits,
    ModelRequest,
    TextDelta,
    TextEnd,
    ThinkingDelta,
)
from clawmode.models.conversion import Dialect, from_response, to_history
from clawmode.models.failures import to_model_error
from clawmode.models.providers import Api, ModelSettings, ProviderSettings, complete, load_sdk
from clawmode.models.wire import Exchange, KeyHeaders, announce, make_client, transport_kind
from clawmode.text import without_surrogates

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModelSettings
    from pydantic_ai.models.openai import OpenAIResponsesModelSettings

PLACEHOLDER = "set-by-the-wire"
"""The SDKs require a key at construction; the HTTP client replaces it by the real one."""
MAX_CACHE_KEY = 64
ANSWER_TOKENS = 1024
"""Tokens reserved for the answer when the thinking budget is used up."""


class Provider(AsyncResource):
    """One HTTP client, and the models that share it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = complete(settings)
        assert self.settings.api is not None
        self.api: Api = self.settings.api
        self.local = bool(self.settings.local)
        self.credential = Credential(self.settings.id, self.settings.key)
        key_headers: KeyHeaders = "bearer"
        if self.api == "anthropic-messages":
            host = urlsplit(self.settings.base_url).hostname or ""
            # Other servers that implement this API read the one header or the other.
            key_headers = "x-api-key" if host.endswith("anthropic.com") else "both"
        self._http = make_client(
            self.credential,
            key_headers,
            timeout=self.settings.timeout_seconds,
            local=self.local,
            headers=self.settings.headers,
        )

    def model(self, model_id: str) -> "DirectModel":
        """Returns a model of this provider, which shares its HTTP client."""
        return DirectModel(self, model_id)

    async def aclose(self) -> None:
        await self._http.aclose()

    def library_model(self, name: str, known: ModelSettings) -> TheirModel:
        """Returns the model of pydantic-ai that makes the requests."""
        client: dict[str, Any] = {
            "api_key": PLACEHOLDER,
            "base_url": self.settings.base_url,
            "http_client": self._http,
            "timeout": self._http.timeout,
            "max_retries": 0,
        }
        sdk = load_sdk(self.api)
        return sdk.make_library_model(name, self.settings, client, self._profile(known))

    def _profile(self, known: ModelSettings) -> OpenAIModelProfile:
        """Overrides what pydantic-ai guesses from the name of the model."""
        # Without this, pydantic-ai would rewrite the schemas of tools.
        profile = OpenAIModelProfile(json_schema_transformer=None)
        if known.reasoning is not None:
            profile["supports_thinking"] = known.reasoning
            profile["openai_supports_reasoning"] = known.reasoning
            sealed = known.reasoning and not self.local
            profile["openai_supports_encrypted_reasoning_content"] = sealed
            if not known.reasoning:
                profile["thinking_always_enabled"] = False
        if self.settings.id != "openai":
            # Most servers support `max_tokens`, few its successor.
            profile["openai_chat_supports_max_completion_tokens"] = False
        return profile


class DirectModel(AsyncResource):
    """One model of a provider. Closing it closes the provider.

    Raises:
        ConfigurationError: The provider does not accept the name of the model.
    """

    def __init__(self, provider: Provider, model_id: str) -> None:
        self._known = provider.settings.models.get(model_id, ModelSettings())
        self._provider = provider
        try:
            self._model = provider.library_model(self._known.id or model_id, self._known)
        except UserError as error:
            raise ConfigurationError(f"{provider.settings.id}/{model_id}: {error}") from error
        self.provider = provider.settings.id
        self.name = model_id
        window = self._known.context_window or self._model.context_window
        self.limits = ModelLimits(
            context_window=window or ModelLimits().context_window,
            max_tokens=self._known.max_tokens,
            local=provider.local,
            timeout_seconds=provider.settings.timeout_seconds,
        )
        sealing = self._model.profile.get("openai_supports_encrypted_reasoning_content", False)
        self._dialect = Dialect(
            provider=self.provider,
            system=self._model.system,
            api=provider.api,
            seals=provider.api == "anthropic-messages" or bool(sealing),
            images="image" in self._known.input,
        )

    def __repr__(self) -> str:
        return f"DirectModel({self.provider}/{self.name})"

    async def aclose(self) -> None:
        await self._provider.aclose()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Sends a request and opens the stream of the answer. See `Model.stream`."""
        exchange = Exchange(f"{self.provider}/{self.name}", request.exact_tools, request.run_id)
        async with AsyncExitStack() as stack:
            try:
                # The request is sent here, and only here. The context variable must not be set
                # across the `yield`, where the caller's code would run with it.
                with announce(exchange):
                    streamed = await stack.enter_async_context(self._open(request))
            except Exception as error:
                raise self._translated(error, exchange) from error
            events = self._events(streamed, request, exchange)
            await stack.enter_async_context(aclosing(events))
            yield events

    def _open(self, request: ModelRequest) -> Any:
        return model_request_stream(
            self._model,
            to_history(request.messages, self._dialect),
            model_settings=self._settings(request),
            model_request_parameters=ModelRequestParameters(
                function_tools=[
                    TheirTool(
                        name=tool.name,
                        description=tool.description,
                        parameters_json_schema=tool.parameters,
                        strict=False,
                    )
                    for tool in request.tools
                ],
                instruction_parts=[InstructionPart(without_surrogates(request.system))]
                if request.system
                else [],
            ),
            instrument=False,
        )

    async def _events(
        self, streamed: StreamedResponse, request: ModelRequest, exchange: Exchange
    ) -> AsyncGenerator[ModelEvent, None]:
        try:
            async for event in streamed:
                yield _event(event)
            message = self._finish(streamed.get(), request, exchange)
        except Exception as error:
            raise self._translated(error, exchange) from error
        yield MessageEnd(message)

    def _finish(
        self, response: ModelResponse, request: ModelRequest, exchange: Exchange
    ) -> AssistantMessage:
        if response.finish_reason == "error":
            raise ModelError("server", f"{exchange.model}: the provider aborted the answer")
        has_reason = bool((response.provider_details or {}).get("finish_reason"))
        if self._dialect.api == "openai-completions":
            # Some servers never send a finish reason, but all of them send `[DONE]`.
            complete = has_reason or exchange.done or response.finish_reason == "content_filter"
        elif self._dialect.api == "openai-responses":
            complete = response.state == "complete"
        else:
            complete = has_reason
        if not complete:
            raise ModelError("garbage", f"{exchange.model}: the answer is not complete")
        taken = {
            part.id
            for message in request.messages
            if isinstance(message, AssistantMessage)
            for part in message.content
            if isinstance(part, ToolCall)
        }
        return from_response(response, self._dialect, self.name, taken)

    def _translated(self, error: Exception, exchange: Exchange) -> Exception:
        # The SDKs wrap our own error, so that the exchange keeps the original.
        if exchange.refusal is not None:
            return exchange.refusal
        translated = to_model_error(
            error,
            exchange.model,
            sent=exchange.sent,
            transport=transport_kind(error),
            provider=self._provider.settings,
            redactor=self._provider.credential.redactor,
        )
        return translated or error

    # ---- Settings ----

    def _settings(self, request: ModelRequest) -> Any:
        max_tokens = request.max_tokens or self._known.max_tokens
        common: Any = {
            "thinking": False if request.thinking == "off" else request.thinking,
            "extra_headers": {"User-Agent": f"clawmode/{__version__}"},
        }
        if max_tokens is not None:
            common["max_tokens"] = max_tokens
        if self._dialect.api == "anthropic-messages":
            return self._anthropic_settings(request, common)
        settings: OpenAIResponsesModelSettings = common
        if request.cache_key and not self._provider.local:
            key = request.cache_key
            if len(key) > MAX_CACHE_KEY:
                key = hashlib.sha256(key.encode()).hexdigest()
            settings["openai_prompt_cache_key"] = key
        if self._dialect.api == "openai-responses":
            # The provider stores nothing: encrypted thinking travels with the conversation.
            settings["openai_store"] = False
            if request.thinking != "off" and self._thinks:
                settings["openai_reasoning_summary"] = "auto"
        return settings

    def _anthropic_settings(
        self, request: ModelRequest, settings: "AnthropicModelSettings"
    ) -> "AnthropicModelSettings":
        if request.cache_key:
            # Marks in the blocks: some gateways do not support the mark for the whole request.
            settings["anthropic_cache_instructions"] = True
            settings["anthropic_cache_tool_definitions"] = True
            settings["anthropic_cache_messages"] = True
        adaptive = self._model.profile.get("anthropic_supports_adaptive_thinking", False)
        if request.thinking != "off" and self._thinks and not adaptive:
            # The thinking budget counts against `max_tokens`, and must leave room for the answer.
            least = ANTHROPIC_THINKING_BUDGET_MAP[request.thinking] + ANSWER_TOKENS
            if "max_tokens" in settings:
                settings["max_tokens"] = max(settings["max_tokens"], least)
        return settings

    @property
    def _thinks(self) -> bool:
        profile = self._model.profile
        return bool(profile.get("supports_thinking") or profile.get("thinking_always_enabled"))


def _event(event: object) -> ModelEvent:
    if isinstance(event, PartStartEvent):
        part = event.part
        if isinstance(part, ToolCallPart):
            return CallStart(part.tool_name)
        if isinstance(part, TextPart) and part.content:
            return TextDelta(part.content)
        if isinstance(part, ThinkingPart) and part.content:
            return ThinkingDelta(part.content)
    elif isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta) and delta.content_delta:
            return TextDelta(delta.content_delta)
        if isinstance(delta, ThinkingPartDelta) and delta.content_delta:
            return ThinkingDelta(delta.content_delta)
        if isinstance(delta, ToolCallPartDelta):
            return Chunk(len(delta.args_delta) if isinstance(delta.args_delta, str) else 0)
    elif isinstance(event, PartEndEvent) and isinstance(event.part, TextPart):
        return TextEnd(event.part.content)
    return Chunk()
