"""Rate limits, as libraries and services report them, and texts that only look like them."""

import time
from datetime import timedelta
from email.utils import formatdate
from typing import Any

import pytest

from clawmode.tools.rate_limits import MAX_PAUSE_MS, RateLimit, rate_limit_in, rate_limit_of


class Failed(Exception):
    """An exception with the attributes of some library."""

    def __init__(self, message: str = "failed", **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class RateLimitError(Exception):
    """The name that SDKs of models use."""


class Mined(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("no response")

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.covers("AD-8")
@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (Failed(response=Response(429, retry_after="2")), 2000),
        (Failed(response=Response(429, Retry_After="0.5")), 500),
        (Failed(response=Response(429, retry_after_ms="150", retry_after="1")), 150),
        (Failed(response=Response(429)), None),
        (Failed(status_code=429, headers={"Retry-After": "3"}), 3000),
        (Failed(status=429), None),
        (Failed(code=429, hdrs=None), None),
        (Failed(retry_after=0.2), 200),
        (Failed(retry_after=timedelta(seconds=1)), 1000),
        (RateLimitError("slow down"), None),
        (RateLimitError("slow down, try again in 20ms"), 20),
        (Failed("429 Too Many Requests: retry after 0.2 s"), 200),
        (Failed("429 Client Error: Too Many Requests for url: https://x"), None),
        (Failed("Rate limit exceeded. Please try again in 2 minutes."), 120_000),
        (Failed("You have exceeded your secondary rate limit"), None),
        (Failed("HTTP 429, retry after 3 s"), 3000),
        (Failed(response={"Error": {"Code": "ThrottlingException"}}), None),
        (Failed(response={"ResponseMetadata": {"HTTPStatusCode": 429}}), None),
        (Failed(data={"status": 429, "retryAfterMs": 70}), 70),
        (Failed(data={"type": "rate_limit_exceeded", "retry_after": "4"}), 4000),
        (Failed("rate limited", retry_after=10**12), MAX_PAUSE_MS),
        (Failed("rate limited", retry_after=-3), 0),
        (Failed("rate limited", retry_after="soon"), None),
    ],
)
def test_a_rate_limit_is_recognized(error: Exception, pause: int | None) -> None:
    assert rate_limit_of(error) == RateLimit(pause)


def test_a_date_is_a_pause_from_now() -> None:
    date = formatdate(time.time() + 100, usegmt=True)
    limit = rate_limit_of(Failed(response=Response(429, retry_after=date)))
    assert limit is not None
    assert 90_000 < (limit.retry_after_ms or 0) <= 100_000


@pytest.mark.parametrize(
    "error",
    [
        ValueError("order 429 does not exist"),
        ValueError("unknown field rate_limit"),
        ValueError("rate_limit must be a number: set rate limit to 5"),
        Failed(response=Response(503, retry_after="2")),
        Failed(status_code=500),
        Failed(status_code=True),
        Failed(retry_after=None),
        Failed(data={"id": 429, "title": "too many"}),
        KeyError("x"),
        Mined(),
    ],
)
def test_other_failures_are_none(error: Exception) -> None:
    assert rate_limit_of(error) is None


@pytest.mark.hostile
def test_hostile_data_costs_little() -> None:
    deep: Any = "429 Too Many Requests"
    for _ in range(10_000):
        deep = [deep]
    wide = {f"k{n}" * 1000: {"retry_after": float("inf"), "status": [n]} for n in range(10_000)}
    texts = ["rate " * 1_000_000, "retry " * 1_000_000, "try again " * 500_000 + "1" * 10_000_000]
    began = time.process_time()
    for data in (deep, wide, [wide] * 1000, *texts, {"retry_after": "9" * 10_000_000}):
        assert rate_limit_in(data) is None
        assert rate_limit_of(Failed("x", data=data, response=data, headers=data)) is None
    assert time.process_time() - began < 0.5


@pytest.mark.hostile
@pytest.mark.parametrize("text", ["over" * 1000, "over a-a " * 500, "hit rate " * 500])
def test_hostile_texts_cost_little(text: str) -> None:
    began = time.process_time()
    assert rate_limit_in([text] * 200) is None
    assert time.process_time() - began < 0.2


class Strange:
    """A value of foreign code that can be neither compared nor tested."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise TypeError("no comparison")

    def __bool__(self) -> bool:
        raise TypeError("no truth")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (Failed("rate limited", retry_after=10**400), RateLimit(MAX_PAUSE_MS)),
        (Failed("rate limited", retry_after=-(10**400)), RateLimit(0)),
        (Failed(data={"code": 429, "retryAfterMs": 10**400}), RateLimit(MAX_PAUSE_MS)),
        (Failed(status_code=Strange()), None),
        (Failed(headers=Strange()), None),
        (Failed(response=Failed(headers=Strange())), None),
    ],
)
def test_what_an_exception_carries_breaks_nothing(
    error: Exception, limit: RateLimit | None
) -> None:
    assert rate_limit_of(error) == limit
