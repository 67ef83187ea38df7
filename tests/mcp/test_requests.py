"""Open requests: how long they wait, and that a person's time is not the server's."""

import math
from contextlib import ExitStack

import anyio
import pytest
from tests.support.waiting import until

from clawmode.mcp.requests import STRETCH, McpError, OpenRequests

pytestmark = pytest.mark.anyio

TIMEOUT = 10.0


async def test_a_request_that_reports_progress_has_more_time_but_not_without_end() -> None:
    with OpenRequests("s").opened(TIMEOUT, None) as request:
        began = request.patience.deadline - TIMEOUT
        assert request.latest == began + STRETCH * TIMEOUT
        await until(lambda: anyio.current_time() > began)
        await request.progress(1, None, None)
        assert began + TIMEOUT < request.patience.deadline < began + 2 * TIMEOUT
        request.latest = began + TIMEOUT
        await request.progress(2, None, None)
        assert request.patience.deadline == began + TIMEOUT


async def test_progress_does_not_start_a_clock_that_stands_for_a_person() -> None:
    requests = OpenRequests("s")
    with requests.opened(TIMEOUT, None) as request:
        with requests.clocks_stopped():
            await request.progress(1, None, None)
            assert request.patience.deadline == math.inf
        assert request.patience.deadline <= anyio.current_time() + TIMEOUT


async def test_of_several_questions_all_of_the_time_counts_for_nothing() -> None:
    requests = OpenRequests("s")
    with requests.opened(TIMEOUT, None) as request, ExitStack() as first, ExitStack() as second:
        latest = request.latest
        stopped = anyio.current_time()
        first.enter_context(requests.clocks_stopped())
        await until(lambda: anyio.current_time() > stopped + 0.05)
        second.enter_context(requests.clocks_stopped())
        first.close()
        assert request.patience.deadline == math.inf
        second.close()
        assert request.patience.deadline < math.inf
        assert request.latest >= latest + 0.05


async def test_who_waits_is_told_once_why_nothing_comes() -> None:
    requests = OpenRequests("s")
    lost, later = McpError("s", "lost", "was lost"), McpError("s", "protocol", "too late")
    with requests.opened(TIMEOUT, None) as request:
        requests.fail(lost)
        requests.fail(later)
        assert request.done.is_set()
        assert request.error is lost
        assert not request.sending.cancel_called
    assert request.sending.cancel_called
