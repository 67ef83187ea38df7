"""What the providers' libraries raise, as a `ModelError` whose kind says what can be done.

429                                      rate_limit, or quota if the provider says so
529, or said to be overloaded            overloaded
500 and above, errors in a stream        server
408, no bytes in time                    timeout
no connection, or a broken one           connection
no SSE, no JSON, half an answer          garbage
401, 403, no key                         auth
402                                      quota
404                                      not_found
too long for the model, 413              context_overflow
refused for its content                  refused
the rest of 4xx, a redirect              invalid_request
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
from clawmode.models.wire import Exchange, transport_kind
from clawmode.redaction import Redactor

MAX_TEXT = 500

# The first that fits: a subclass stands before what it is one of.
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


def failure(
    error: BaseException, exchange: Exchange, provider: ProviderSettings, redactor: Redactor
) -> ModelError | None:
    """The error for the loop; None if it is none of the provider's or the wire's: a bug, then.

    Args:
        error: What was raised.
        exchange: The request that it was raised for.
        provider: Whom the request was for: the text names the address and the setting.
        redactor: Takes secrets out of the text.
    """
    if exchange.refusal is not None:
        return exchange.refusal
    if isinstance(error, ModelError):
        return error
    kind = _kind(error, exchange)
    if kind is None:
        return None
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    text = without_blobs(redactor.text(_words(error, kind)))[:MAX_TEXT]
    where = f"{exchange.model}: HTTP {status}: " if status else f"{exchange.model}: "
    wait = _retry_after(error) if isinstance(error, ModelAPIError) else None
    advice = _advice(kind, provider)
    return ModelError(kind, where + text + advice, status=status, retry_after=wait)


def _advice(kind: ErrorKind, provider: ProviderSettings) -> str:
    """What a person can do about it, and by which setting."""
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


def _kind(error: BaseException, exchange: Exchange) -> ErrorKind | None:
    if transport_kind(error) == "garbage":
        return "garbage"
    for category, kind in _KINDS:
        if isinstance(error, category):
            return _closer(kind, error)
    if isinstance(error, ModelHTTPError):
        status = error.status_code
        return _STATUSES.get(status, "server" if status >= 500 else "invalid_request")
    if isinstance(error, ModelAPIError):
        return _unsorted(error)
    if isinstance(error, UserError):
        return "invalid_request"
    if (kind := transport_kind(error)) is not None:
        return kind
    # Before anything was sent it is our mistake; later the library stumbled over the answer.
    return "garbage" if exchange.sent and isinstance(error, Exception) else None


def _closer(kind: ErrorKind, error: BaseException) -> ErrorKind:
    """Of what providers only say in words."""
    if kind not in ("invalid_request", "auth", "server") or not isinstance(error, ModelAPIError):
        return kind
    said = f"{error.provider_error_code} {error.provider_error_type} {_said(error)}"
    if kind != "auth" and _TOO_LONG.search(said):
        return "context_overflow"
    # A moderated request is a 403 at some providers.
    refused = kind == "invalid_request" and _REFUSED.search(said)
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    return "refused" if refused or (kind == "invalid_request" and status == 403) else kind


def _unsorted(error: ModelAPIError) -> ErrorKind:
    if _is_redirect(error):
        return "invalid_request"
    if error.in_stream:
        return "context_overflow" if _TOO_LONG.search(_said(error)) else "server"
    return "garbage"


def _is_redirect(error: BaseException) -> bool:
    status = getattr(error.__cause__, "status_code", None)
    return isinstance(status, int) and 300 <= status < 400


def _words(error: BaseException, kind: ErrorKind) -> str:
    if _is_redirect(error):
        return "the address leads to another, which is not followed: check baseUrl"
    if isinstance(error, ModelAPIError):
        said = _said(error)
    else:
        said = str(error).partition("\n")[0]
    if kind == "garbage":
        return f"the answer makes no sense: {said or type(error).__name__}"
    if kind in ("connection", "timeout") and not isinstance(error, ModelHTTPError):
        cause = error.__cause__
        inner = str(cause.__cause__ or cause) if cause is not None else ""
        return " ".join(filter(None, [said.rstrip("."), f"({inner})" if inner else ""]))
    return said or type(error).__name__


def _said(error: ModelAPIError) -> str:
    """The provider's own words, out of the body that they came in."""
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
        # Some providers send fractions, which the standard does not know.
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
