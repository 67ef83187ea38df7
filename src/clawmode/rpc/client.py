"""A client of the gateway: calls its methods, receives its events, and offers tools to its agents.

    async with GatewayClient.local(state) as client:
        result = await client.agent("How warm is it?", tools=[thermometer])

The client reconnects by itself. It repeats a call that was not answered under the same idempotency
key, so that no effect happens twice.
"""

import logging
import math
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from clawmode import __version__
from clawmode.addresses import LOOPBACK
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc import presence
from clawmode.rpc.connection import MAX_EVENTS, Connection
from clawmode.rpc.events import GAP, Event, Events, EventsLost
from clawmode.rpc.link import Introduction, open_link
from clawmode.rpc.presence import Address, GatewayUnreachable
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.served_tools import ServedTools, describe
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

__all__ = [
    "GAP",
    "Event",
    "Events",
    "EventsLost",
    "GatewayClient",
    "GatewayUnreachable",
    "RpcError",
    "TurnResult",
]

logger = logging.getLogger("clawmode.gateway")

ACCEPT_SECONDS = 60.0
HAND_IN_SECONDS = 600.0
POLL_SECONDS = 2.0
"""How often `agent.wait` is called while no event tells of the run's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The result of a turn.

    Attributes:
        status: `ok`, `error`, `timeout` or `aborted`.
        text: The agent's reply.
        data: The whole result of the run, as the gateway returned it.
    """

    run_id: str
    status: str
    text: str = ""
    error: str = ""
    session_key: str = ""
    data: JsonObject = field(default_factory=dict[str, JsonValue], repr=False)

    @classmethod
    def read(cls, run_id: str, answer: JsonObject) -> "TurnResult":
        """Parses the response to `agent.wait`."""
        found = answer.get("result")
        result: dict[str, Any] = found if isinstance(found, dict) else {}
        payloads: list[dict[str, Any]] = result.get("payloads") or []
        texts = [str(part.get("text", "")) for part in payloads if not part.get("kind")]
        return cls(
            run_id=run_id,
            status=str(result.get("status") or answer.get("status")),
            text="\n\n".join(texts),
            error=str(result.get("error") or answer.get("error") or ""),
            session_key=str(result.get("sessionKey", "")),
            data=result,
        )


class GatewayClient(Connection):
    """A client that stays connected to a gateway. Used inside of `async with`, by one task.

    Args:
        url: `ws://` or `wss://`. `ws://` is allowed for a gateway on this machine only.
        token: A token of the gateway.
        client_id: The name of the program; the gateway sees it with a random suffix.
        scopes: The scopes to request; none for all that the token has.
        version: The version of the program.
        mode: The kind of the program, for operators.
        tls: How the gateway's certificate is verified, if not by the system's certificates.
        max_events: The size of the buffer of each reader of `events`.

    Attributes:
        hello: The gateway's response to the last `connect`.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        client_id: str,
        scopes: Iterable[str] = (),
        version: str = __version__,
        mode: str = "backend",
        tls: ssl.SSLContext | None = None,
        max_events: int = MAX_EVENTS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme == "ws" and parts.hostname not in LOOPBACK:
            raise ConfigurationError(
                f"the token would be sent to {parts.hostname} unencrypted: use wss:// instead"
            )
        address = Address(url=url, token=token, tls=tls)
        who = Introduction(
            # Unique: a call of a tool is sent to a client with this id and token.
            client_id=f"{client_id[:90]}/{uuid.uuid4().hex[:12]}",
            version=version,
            mode=mode,
            scopes=tuple(scopes),
        )
        super().__init__(
            lambda: address, lambda address: open_link(address, who), who.client_id, max_events
        )
        self._endings: dict[str, anyio.Event] = {}
        self._served = ServedTools(self._hand_in, self._start)

    @classmethod
    def local(cls, state: Path, *, client_id: str = "local", **options: Any) -> "GatewayClient":
        """Returns a client of the gateway of a state folder, which also finds its successors.

        Args:
            state: The state folder.
            client_id: The name of the program.
            options: Other arguments of `GatewayClient`.
        """
        # The URL is a placeholder: the address is looked up before each attempt to connect.
        client = cls("ws://localhost", "", client_id=client_id, **options)
        client._where = lambda: _local_address(state)
        return client

    async def agent(
        self,
        message: str,
        *,
        tools: Iterable[Tool] = (),
        session_key: str = "",
        params: Mapping[str, JsonValue] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (as that of `wait`)
    ) -> TurnResult:
        """Runs a turn, and waits for its end.

        Args:
            message: The message to the agent.
            tools: Tools that the agent can call in addition to the gateway's; they run here.
            session_key: The conversation.
            params: More parameters of the method `agent`.
            timeout: How long to wait, in seconds. After that the run continues without the tools.

        Raises:
            RpcError: The gateway rejects the turn, or (`TIMEOUT`) the run takes too long.
        """
        offered = tuple(tools)
        given: JsonObject = {"message": message, **(params or {})}
        if session_key:
            given["sessionKey"] = session_key
        if offered:
            given["clientTools"] = describe(offered)
        with self._served.offer(offered) as offer:
            accepted = await self.call("agent", given, timeout=ACCEPT_SECONDS)
            run_id = str(accepted["runId"])
            self._served.claim(offer, run_id)
            return await self.wait(run_id, timeout)

    async def wait(
        self,
        run_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 (it is also in the error)
    ) -> TurnResult:
        """Waits for the end of a run. A timeout does not stop the run.

        Raises:
            RpcError: There is no such run, or (`TIMEOUT`) it takes longer.
        """
        # Short calls, not one that waits: the gateway executes a limited number of a client's
        # requests concurrently, and the results of its tools are requests as well.
        limit = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while True:
                ended = self._endings[run_id] = anyio.Event()
                answer = await self.call("agent.wait", {"runId": run_id, "timeoutMs": 0})
                if answer.get("status") != "timeout":
                    return TurnResult.read(run_id, answer)
                left = limit - time.monotonic()
                if left <= 0:
                    raise RpcError("TIMEOUT", f"run {run_id} did not end in {timeout:g} s")
                with anyio.move_on_after(min(left, POLL_SECONDS)):
                    await ended.wait()
        finally:
            self._endings.pop(run_id, None)

    def _publish(self, event: Event) -> None:
        data = event.payload.get("data")
        if event.name == "tool.call":
            self._served.take(event.payload)
        elif event.name == GAP:
            # The end of a run may be among the lost events: every waiter asks the gateway.
            for ended in self._endings.values():
                ended.set()
        elif (
            (event.name, event.payload.get("stream")) == ("agent", "lifecycle")
            and isinstance(data, dict)
            and data.get("phase") in ("end", "error")
        ):
            run_id = str(event.payload.get("runId"))
            self._served.end(run_id)
            if (ended := self._endings.get(run_id)) is not None:
                ended.set()
        super()._publish(event)

    # ---- Tools ----

    def _start(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *arguments)

    async def _hand_in(self, answer: JsonObject) -> None:
        try:
            await self.call("tools.result", answer, timeout=HAND_IN_SECONDS)
        except RpcError as error:
            # Without another answer the run would wait for a result that cannot be sent.
            if error.code == "TOO_LARGE" and "result" in answer:
                text = f"the result is too large: {error}"
                await self._hand_in({"callId": answer["callId"], "error": text})
            else:
                logger.info("the gateway no longer waits for the result of a tool: %s", error)
        except ClawmodeError as error:
            logger.info("the result of a tool could not be sent: %s", error)


def _local_address(state: Path) -> Address:
    found = presence.find(state)
    if found is None or not presence.is_held(state):
        raise GatewayUnreachable(f"no gateway runs on the state folder {state}")
    if not found.cert:
        return Address(url=found.url, token=found.token)
    # Trusts the gateway's own certificate only, which its announcement names, whatever host name
    # the certificate is for.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(found.cert)
    except OSError as error:
        text = f"the gateway's certificate {found.cert} cannot be read: {error.strerror}"
        raise GatewayUnreachable(text) from None
    return Address(url=found.url, token=found.token, tls=context)
