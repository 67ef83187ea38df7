"""Our MCP server over HTTP: who may enter, how many at once, and which sessions stay open."""

import contextlib
import json
import math
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clawmode.addresses import Attempts, Site
from clawmode.mcp.identity import NotAdmitted, Principal
from clawmode.mcp.server import (
    PRINCIPAL,
    SESSION_HEADER,
    Opener,
    open_server,
)
from clawmode.mcp.servers import McpServers
from clawmode.types import JsonValue

PATH = "/mcp"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
TRUST = "clawmode.trust"
"""The key of the ASGI state with a callable of the web server: the client has authenticated."""
MAX_SESSIONS = 256
"""Open sessions of one principal. The oldest is ended, and none of its programs."""


Authenticate: TypeAlias = Callable[[str], Awaitable[Principal]]
"""Returns the principal of a bearer token, or raises `NotAdmitted`."""


# ---- Entering ----


class Gatekeeper:
    """Admits requests of authenticated clients, and says who they are.

    Args:
        app: The wrapped application.
        site: The names of this server.
        authenticate: Checks bearer tokens.
        attempts: Counts wrong tokens by address. An address with too many of them has to wait, also
            with the right token.
        most: The most requests at once; one principal may have half of them.
        metadata: The OAuth metadata of this server (RFC 9728), which everybody may read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        site: Site,
        authenticate: Authenticate,
        attempts: Attempts,
        most: int = 1_000,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self._app = app
        self._site = site
        self._authenticate = authenticate
        self._attempts = attempts
        self._most = most
        self._busy = Counter[str]()
        self._metadata = metadata
        self._well_known = ""
        if metadata is not None:
            path = urlsplit(str(metadata["resource"])).path.rstrip("/")
            self._well_known = f"{WELL_KNOWN}{path}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = self._check_names(scope) or self._public(scope) or await self._admit(scope)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        busy = self._busy
        if busy.total() >= self._most or busy[found.id] >= max(self._most // 2, 1):
            text = "Too many requests at once: try again later.\n"
            refusal = PlainTextResponse(text, 503, {"retry-after": "1"})
            await refusal(scope, receive, send)
            return
        busy[found.id] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            busy[found.id] -= 1
            if not busy[found.id]:
                del busy[found.id]

    def _check_names(self, scope: Scope) -> Response | None:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not self._site.knows_host(hosts[0]):
            text = "This is not the name of this server: see --public-url.\n"
            return PlainTextResponse(text, 421)
        if not all(self._site.knows_origin(each, hosts[0]) for each in origins):
            return PlainTextResponse("Requests of this web page are not accepted.\n", 403)
        return None

    def _public(self, scope: Scope) -> Response | None:
        if self._metadata is None or scope["path"] not in (self._well_known, WELL_KNOWN):
            return None
        text = json.dumps(self._metadata)
        headers = {"access-control-allow-origin": "*", "cache-control": "max-age=3600"}
        return Response(text, headers=headers, media_type="application/json")

    async def _admit(self, scope: Scope) -> Principal | Response:
        address = (scope.get("client") or ("",))[0]
        if (seconds := self._attempts.wait(address)) > 0:
            headers = {"retry-after": str(math.ceil(seconds))}
            return PlainTextResponse("Too many wrong tokens: try again later.\n", 429, headers)
        given = _values(scope, b"authorization")
        if not any(given):  # many clients try without a token first, which is not a guess
            return self._refusal(NotAdmitted("A bearer token is required.", ""))
        kind, _, token = given[0].partition(" ")
        try:
            if len(given) != 1 or kind.lower() != "bearer" or not token:
                raise NotAdmitted("A bearer token is required.", "invalid_request")
            principal = await self._authenticate(token)
        except NotAdmitted as error:
            if error.is_guess:
                self._attempts.fail(address)
            return self._refusal(error)
        scope[PRINCIPAL] = principal
        # The SDK lets a session be used by the principal that opened it, and by no other.
        access = AccessToken(token="", client_id=principal.id, scopes=[])
        scope["user"] = AuthenticatedUser(access)
        scope.get("state", {}).get(TRUST, lambda: None)()
        return principal

    def _refusal(self, error: NotAdmitted) -> Response:
        about = [f'error="{error.error}"'] if error.error else []
        if self._metadata is not None:
            resource = urlsplit(str(self._metadata["resource"]))
            address = f"{resource.scheme}://{resource.netloc}{self._well_known}"
            about.append(f'resource_metadata="{address}"')
            scopes = self._metadata.get("scopes_supported")
            if isinstance(scopes, list) and scopes:
                about.append(f'scope="{" ".join(map(str, scopes))}"')
        status = {"insufficient_scope": 403, "temporarily_unavailable": 503}.get(error.error, 401)
        headers = {"www-authenticate": f"Bearer {', '.join(about)}".strip()}
        return PlainTextResponse(f"{error}\n", status, headers)


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


# ---- Sessions ----


class SessionLimit:
    """Ends the oldest sessions of a principal that opens too many.

    Without it, one client could take all the sessions that the SDK keeps. The programs of a session
    that ends go on.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[str, OrderedDict[str, None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        opened: list[str] = []

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = SESSION_HEADER.encode()
                opened.extend(v.decode() for key, v in message["headers"] if key.lower() == name)
            await send(message)

        await self._app(scope, receive, note)
        mine = self._open.setdefault(scope[PRINCIPAL].id, OrderedDict[str, None]())
        for session in opened:
            mine[session] = None
            mine.move_to_end(session)
        if scope["method"] == "DELETE":
            for session in _values(scope, SESSION_HEADER.encode()):
                mine.pop(session, None)
        while len(mine) > MAX_SESSIONS:
            await self._end(scope, mine.popitem(last=False)[0])
        if not mine:
            del self._open[scope[PRINCIPAL].id]

    async def _end(self, scope: Scope, session: str) -> None:
        """Ends a session as its client would."""
        kept = [(key, value) for key, value in scope["headers"] if key in (b"host", b"accept")]
        headers = [*kept, (SESSION_HEADER.encode(), session.encode())]

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            pass

        await self._app({**scope, "method": "DELETE", "headers": headers}, receive, send)


# ---- The application ----


@contextlib.asynccontextmanager
async def http_app(
    opener: Opener,
    servers: McpServers,
    site: Site,
    authenticate: Authenticate,
    *,
    most: int,
    metadata: Mapping[str, JsonValue] | None = None,
) -> AsyncIterator[ASGIApp]:
    """Yields the application that serves clients over streamable HTTP at `/mcp`.

    Args:
        opener: Makes the `CodeMode` of a principal.
        servers: The MCP servers that programs can call.
        site: The names of this server.
        authenticate: Checks bearer tokens.
        most: The most requests at once.
        metadata: See `Gatekeeper`.
    """
    # `Gatekeeper` checks hosts and origins on every address, and not only on loopback.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    async with open_server(opener, servers) as opened:
        inner = opened.server.streamable_http_app(
            streamable_http_path=PATH, transport_security=unchecked
        )
        keeper = Gatekeeper(
            SessionLimit(inner),
            site=site,
            authenticate=authenticate,
            attempts=Attempts(),
            most=most,
            metadata=metadata,
        )
        async with opened.server.session_manager.run():
            yield keeper
