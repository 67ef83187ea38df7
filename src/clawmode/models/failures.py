"""Translates the exceptions of pydantic-ai and the SDKs into a `ModelError` with a kind.

429                                      rate_limit, or quota if the provider says so
529, or "overloaded" in the body         overloaded
500 and above, errors in a stream        server
408, no bytes in time                    timeout
no connection, or a lost one             connection
invalid SSE or JSON, partial answer      garbage
401, 403, no key                         auth
402                                      quota
404                                      not_found
too long for the model, 413              context_overflow
refused for its content                  refused
other 4xx, a redirect                    invalid_request
"""

import json
import re
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UserError,
)

from clawmode.models.base import ErrorKind, ModelError
from clawmode.models.debug import without_blobs
from clawmode.models.providers import ProviderSettings
from clawmode.redaction import Redactor

MAX_TEXT = 500

# The first match counts, so that a subclass must come before its base class.
_KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (ModelRateLimitError, "rate_limit"),
    (ModelQuotaExceededError, "quota"),
    (ModelOverloadedError, "overloaded"),
    (ModelUnavailableError, "server"),
    (ModelServerError, "server"),
    (ModelTimeoutError, "timeout"),
    (ModelConnectionError, "connection"),
    (ModelRequestTimeout, "timeout"),
    (ModelContextWindowExceededError, "context_overflow"),
    (ModelAuthenticationError, "auth"),
    (ModelNotFoundError, "not_found"),
    (ModelRequestRejectedError, "invalid_request"),
    (ContentFilterError, "refused"),
)
_STATUSES: dict[int, ErrorKind] = {408: "timeout", 409: "server", 413: "context_overflow"}

_TOO_LONG = re.compile(
    r"(?i)context[ _](?:length|size|window|limit)|prompt is too long|too many (?:input )?tokens"
    r"|exceeds? (?:the )?(?:maximum|max)(?: number of)?(?: input)? tokens"
    r"|input length and `?max_tokens`?"
)
_REFUSED = re.compile(
    r"(?i)content[_ ](?:filter|policy|management)|moderation|flagged|safety system|usage policy"
    r"|invalid_prompt"
)


def to_model_error(
    error: BaseException,
    model: str,
    *,
    sent: bool,
    transport: ErrorKind | None,
    provider: ProviderSettings,
    redactor: Redactor,
) -> ModelError | None:
    """Translates an exception; returns None if the exception is a bug in this process.

    Args:
        error: The exception.
        model: The model that the request was for, `provider/name`.
        sent: True if the request may have left this process.
        transport: The kind of the transport error that caused the exception, if there was one.
        provider: The message names the provider's address and settings.
        redactor: Redacts secrets in the message.
    """
    if isinstance(error, ModelError):
        return error
    kind = _kind(error, transport, sent)
    if kind is None:
        return None
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    text = without_blobs(redactor.text(_describe(error, kind)))[:MAX_TEXT]
    where = f"{model}: HTTP {status}: " if status else f"{model}: "
    wait = _retry_after(error) if isinstance(error, ModelAPIError) else None
    advice = _advice(kind, provider)
    return ModelError(kind, where + text + advice, status=status, retry_after=wait)


def _advice(kind: ErrorKind, provider: ProviderSettings) -> str:
    """Returns what the user can do about an error, with the name of the setting."""
    setting = f"models.providers.{provider.id}"
    if kind == "connection":
        server = "Start the server" if provider.local else "Check the network"
        return f". The address is {provider.place}: {server}, or correct {setting}.baseUrl."
    if kind == "timeout":
        return f". The address is {provider.place}; {setting}.timeoutSeconds allows more time."
    if kind == "auth" and provider.key is None:
        return f". No key is configured for {provider.place}: set {setting}.auth."
    if kind == "auth":
        return f". The key is from {provider.key}: check it, or change {setting}.auth."
    if kind == "not_found":
        return f". Check the name of the model, and {setting}.baseUrl, which is {provider.place}."
    return ""


def _kind(error: BaseException, transport: ErrorKind | None, sent: bool) -> ErrorKind | None:
    # First: the SDKs report an answer that cannot be decoded as a connection error.
    if transport == "garbage":
        return "garbage"
    for category, kind in _KINDS:
        if isinstance(error, category):
            return _refine(kind, error)
    if isinstance(error, ModelHTTPError):
        status = error.status_code
        return _STATUSES.get(status, "server" if status >= 500 else "invalid_request")
    if isinstance(error, ModelAPIError):
        if _is_redirect(error):
            return "invalid_request"
        if error.in_stream:
            return "context_overflow" if _TOO_LONG.search(_provider_text(error)) else "server"
        return "garbage"
    if isinstance(error, UserError):
        return "invalid_request"
    if transport is not None:
        return transport
    # Before the request was sent, the bug is ours; later the SDK could not parse the answer.
    return "garbage" if sent and isinstance(error, Exception) else None


def _refine(kind: ErrorKind, error: BaseException) -> ErrorKind:
    """Returns the more exact kind, where providers state it only in the text of the error."""
    if kind not in ("invalid_request", "auth", "server") or not isinstance(error, ModelAPIError):
        return kind
    text = f"{error.provider_error_code} {error.provider_error_type} {_provider_text(error)}"
    if kind != "auth" and _TOO_LONG.search(text):
        return "context_overflow"
    # Some providers answer a request that was rejected by moderation with 403.
    refused = kind == "invalid_request" and _REFUSED.search(text)
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    return "refused" if refused or (kind == "invalid_request" and status == 403) else kind


def _is_redirect(error: BaseException) -> bool:
    status = getattr(error.__cause__, "status_code", None)
    return isinstance(status, int) and 300 <= status < 400


def _describe(error: BaseException, kind: ErrorKind) -> str:
    if _is_redirect(error):
        return "the server answered with a redirect, which is not followed: check baseUrl"
    if isinstance(error, ModelAPIError):
        text = _provider_text(error)
    else:
        text = str(error).partition("\n")[0]
    if kind == "garbage":
        return f"the answer is not valid: {text or type(error).__name__}"
    if kind in ("connection", "timeout") and not isinstance(error, ModelHTTPError):
        cause = error.__cause__
        inner = str(cause.__cause__ or cause) if cause is not None else ""
        return " ".join(filter(None, [text.rstrip("."), f"({inner})" if inner else ""]))
    return text or type(error).__name__


def _provider_text(error: ModelAPIError) -> str:
    """Returns the provider's own message out of the body of the response."""
    body: Any = error.body
    for _ in range(3):
        if isinstance(body, str):
            return body
        if not isinstance(body, dict):
            break
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
    if isinstance(body, (dict, list)):
        return json.dumps(body, default=str)
    return "" if isinstance(error, ModelHTTPError) else error.message


def _retry_after(error: ModelAPIError) -> float | None:
    if error.retry_after is not None:
        return error.retry_after
    headers = (error.headers or {}) if isinstance(error, ModelHTTPError) else {}
    try:
        # Some providers send fractions of seconds, which the SDKs do not parse.
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
