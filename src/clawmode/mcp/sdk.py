"""The SDK's client as we use it: its answers filtered and unchanged, its logs redacted."""

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from clawmode.mcp.listing import MAX_ENTRIES, MAX_LISTED, Problems, sift
from clawmode.mcp.server_tasks import hide_task
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.wire import TOO_LARGE, IncomingStream, Link, OutgoingStream

logger = logging.getLogger("clawmode.mcp")

# ---- Logs of the SDK ----

CURRENT: ContextVar[ServerSettings | None] = ContextVar("clawmode_mcp_server", default=None)


class _SdkLogFilter(logging.Filter):
    """Replaces the SDK's log records about our connections by redacted debug records.

    The SDK logs tracebacks for faults of a server, and addresses with secrets in them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        settings = CURRENT.get()
        if settings is None:
            return True
        # Records below INFO contain whole messages, which may be confidential.
        if record.levelno >= logging.INFO and logger.isEnabledFor(logging.DEBUG):
            text = settings.redact(record.getMessage())[:500]
            logger.debug("%s: %s: %s", settings.name, record.name, text)
        return False


_sdk_log_filter = _SdkLogFilter()
for _name in (
    "client",
    "httpx2",
    "mcp.client.auth.oauth2",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp.shared.jsonrpc_dispatcher",
):
    logging.getLogger(_name).addFilter(_sdk_log_filter)


# ---- Answers ----


class Dispatcher(JSONRPCDispatcher):
    """Reports its end, and filters answers before the SDK validates them."""

    def __init__(self, link: Link, reads: IncomingStream, writes: OutgoingStream) -> None:
        super().__init__(reads, writes)
        self._link = link
        self.problems = Problems()

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        **internal: Any,
    ) -> dict[str, Any]:
        """Sends a request; an answer that would take long to check is refused."""
        answer = await super().send_raw_request(method, params, opts, **internal)
        if method == "tools/list":
            tools = answer.get("tools")
            if isinstance(tools, list) and len(tools) > MAX_LISTED:
                self.problems.add(f"a page lists {len(tools)} tools; {MAX_LISTED} are read")
                tools = tools[:MAX_LISTED]
            return {**answer, "tools": sift(tools, self.problems)}
        if method == "tools/call":
            answer = hide_task(answer)
        for key, value in answer.items():
            if isinstance(value, list) and len(value) > MAX_ENTRIES:
                raise MCPError(TOO_LARGE, f"its answer has over {MAX_ENTRIES} entries in {key!r}")
        return answer

    async def run(self, *args: Any, **options: Any) -> None:
        """Runs until the connection ends."""
        try:
            await super().run(*args, **options)
        finally:
            self._link.events.ring(over=True)


def is_end(error: MCPError) -> bool:
    """True if the connection has ended. Servers use the same code, hence the check of the text."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


def leaf_of(error: BaseException) -> BaseException:
    """Returns the first exception of nested groups; `EndOfStream` only if there is no other."""
    while isinstance(error, BaseExceptionGroup):
        real = [each for each in error.exceptions if not isinstance(each, anyio.EndOfStream)]
        error = (real or error.exceptions)[0]
    return error
