"""A client of the gateway: calls its methods, hears its events, brings tools along.

    async with GatewayClient.local(state) as client:
        result = await client.agent("How warm is it?", tools=[thermometer])

It connects again by itself. A call that was not answered is made again under the same idempotency
key, so that nothing is done twice.
"""

import logging
import math
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from clawmode import __version__
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc import presence
from clawmode.rpc.connection import MAX_EVENTS, Connection
from clawmode.rpc.events import GAP, Event, Events, EventsLost
from clawmode.rpc.link import Address, GatewayUnreachable, Introduction
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.served_tools import ServedTools, describe
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

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
"""How often a run is asked after of whose end nothing is heard."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What came of a turn.

    Attributes:
        status: `ok`, `error`, `timeout` or `aborted`.
        text: The reply.
        data: All that the gateway says.
    """

    run_id: str
    status: str
    text: str = ""
    error: str = ""
    session_key: str = ""
    data: JsonObject = field(default_factory=dict[str, JsonValue], repr=False)

    @classmethod
    def read(cls, run_id: str, answer: JsonObject) -> "TurnResult":
        """What `agent.wait` answers."""
        found = answer.get("result")
        result: dict[str, Any] = found if isinstance(found, dict) else {}
        payloads: list[dict[str, Any]] = result.get("payloads") or []
        texts = [str(it.get("text", "")) for it in payloads if not it.get("kind")]
        return cls(
            run_id=run_id,
            status=str(result.get("status") or answer.get("status")),
            text="\n\n".join(texts),
            error=str(result.get("error") or answer.get("error") or ""),
            session_key=str(result.get("sessionKey", "")),
            data=result,
        )


class GatewayClient(Connection):
    """A connection to a gateway, kept up. Used inside of `async with`, in one task.

    Args:
        url: `ws://` or `wss://`. Without TLS the gateway is on this machine.
        token: What lets us in.
        client_id: What program it is; the gateway is told, with a number beside it.
        scopes: What it wants to be able to do; none: all that the token allows.
        version: Of the program.
        mode: What kind of program it is, for operators.
        tls: How the gateway's certificate is checked, if not as the system does it.
        max_events: How many wait for each reader of `events`.

    Attributes:
        hello: What the gateway said when it let us in.
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
        _check_plain(url)
        address = Address(url=url, token=token, tls=tls)
        who = Introduction(
            # Its own: calls of its tools are for it, and for no other that is called so.
            client_id=f"{client_id[:90]}/{uuid.uuid4().hex[:12]}",
            version=version,
            mode=mode,
            scopes=tuple(scopes),
        )
        super().__init__(lambda: address, who, max_events)
        self._endings: dict[str, anyio.Event] = {}
        self._served = ServedTools(self._hand_in, self._start)

    @classmethod
    def local(cls, state: Path, *, client_id: str = "local", **options: Any) -> "GatewayClient":
        """A client of the gateway of a state folder; of the next one, too, if that is restarted.

        Args:
            state: The folder.
            client_id: What program it is.
            options: Those of `GatewayClient`.
        """
        made = cls("ws://localhost", "", client_id=client_id, **options)
        made._where = lambda: _local_address(state)
        return made

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
            message: What is said.
            tools: Those that it can call beside the gateway's; they run here.
            session_key: In which conversation.
            params: Others of the method `agent`.
            timeout: How long it is waited for; then the run goes on without its tools.

        Raises:
            RpcError: It is refused, or (`TIMEOUT`) takes too long.
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
        """Waits for a run's end. To give up waiting does not stop it.

        Raises:
            RpcError: There is no such run, or (`TIMEOUT`) it takes longer.
        """
        # No long calls: the gateway carries out so many of a client's at a time, and results of
        # tools are calls as well.
        limit = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while True:
                ended = self._endings[run_id] = anyio.Event()
                answer = await self.call("agent.wait", {"runId": run_id, "timeoutMs": 0})
                if answer.get("status") != "timeout":
                    return TurnResult.read(run_id, answer)
                left = limit - time.monotonic()
                if left <= 0:
                    raise RpcError("TIMEOUT", f"run {run_id} takes longer than {timeout:g} s")
                with anyio.move_on_after(min(left, POLL_SECONDS)):
                    await ended.wait()
        finally:
            self._endings.pop(run_id, None)

    def _tell(self, event: Event) -> None:
        """Sees to tools and ends of runs, and tells all readers."""
        if event.name == "tool.call":
            self._served.take(event.payload)
        elif event.name == GAP:
            for ended in self._endings.values():
                ended.set()
        elif event.name == "agent" and _is_end(event.payload):
            run_id = str(event.payload.get("runId"))
            self._served.end(run_id)
            if (ended := self._endings.get(run_id)) is not None:
                ended.set()
        super()._tell(event)

    # ---- Tools ----

    def _start(self, function: Callable[..., Any], *arguments: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *arguments)

    async def _hand_in(self, answer: JsonObject) -> None:
        try:
            await self.call("tools.result", answer, timeout=HAND_IN_SECONDS)
        except RpcError as error:
            if error.code == "TOO_LARGE" and "result" in answer:
                text = f"the result is too large: {error}"
                await self._hand_in({"callId": answer["callId"], "error": text})
            else:
                logger.info("a call that nobody waits for any more: %s", error)
        except ClawmodeError as error:
            logger.info("a result that could not be handed in: %s", error)


def _is_end(payload: JsonObject) -> bool:
    data = payload.get("data")
    is_life = payload.get("stream") == "lifecycle" and isinstance(data, dict)
    return is_life and data.get("phase") in ("end", "error")


# ---- Where it is ----


def _check_plain(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "ws" and parts.hostname not in LOOPBACK:
        raise ConfigurationError(
            f"the token would go over the network in the clear: use wss:// for {parts.hostname}"
        )


def _local_address(state: Path) -> Address:
    found = presence.find(state)
    if found is None or not presence.is_held(state):
        raise GatewayUnreachable("no gateway runs on this state folder")
    return Address(url=found.url, token=found.token, tls=_pinned(found.cert))


def _pinned(cert: str) -> ssl.SSLContext | None:
    """Trusts one certificate alone, whatever name it has: the gateway's own, named in its file."""
    if not cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cert)
    except OSError as error:
        raise GatewayUnreachable(f"its certificate cannot be read: {error.strerror}") from None
    return context
