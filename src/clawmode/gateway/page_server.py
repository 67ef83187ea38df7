"""Serves the control page: its files, login and logout, and the headers of every response."""

import hashlib
import json
import logging
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from clawmode.addresses import Site
from clawmode.gateway.logins import Grant, Session, check_attempts, revoked
from clawmode.rpc.http_server import TRUST
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.tokens import LOCAL
from clawmode.sandbox.artifacts import read_checked
from clawmode.tasks import read_bounded
from clawmode.types import JsonObject, JsonValue, dataclass, refuse_constant

if TYPE_CHECKING:
    from clawmode.gateway.gateway import Gateway

logger = logging.getLogger("clawmode.gateway")

FOLDER = Path(__file__).parent / "page"
LIBRARY = "preact.js"
"""Preact with hooks and htm. It comes from npm, and is pinned like the files of the guest."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_IMPORT = re.compile(r'^(?:import|export)[^;]*? from "\./([\w.]+)";', re.MULTILINE)

MAX_BODY = 4_096
BODY_SECONDS = 10.0

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""On every response, so that no route can be framed, sniffed or read by a page of another site."""

NOT_KEPT = {"cache-control": "no-store"}
SECURE = "__Host-"
"""The prefix of a cookie that browsers accept only over TLS, and from this very host."""

STATUSES = {"UNAUTHORIZED": 401, "RATE_LIMITED": 429, "UNAVAILABLE": 503, "FORBIDDEN": 403}


# ---- Every request ----


class Guarded:
    """Rejects requests and upgrades under a name that is not ours, and adds the headers.

    A page that rebinds its own name to our address (DNS rebinding) sends that name as `Host`.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                given = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *given]}
            await send(message)

        host = HTTPConnection(scope).headers.get("host", "")
        if self._site.knows_host(host):
            await self._app(scope, receive, send_with_headers)
            return
        logger.warning("a request was rejected: host %r is not allowed", host[:200])
        text = "the gateway does not know this host name: add it to gateway.allowedHosts"
        denial = PlainTextResponse(text, 403)
        if scope["type"] == "websocket":
            socket = WebSocket(scope, receive, send_with_headers)
            await socket.send_denial_response(denial)
        else:
            await denial(scope, receive, send_with_headers)


# ---- Files ----


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files of the page, as they are served.

    Attributes:
        version: The hash of all files, which is part of their address: browsers keep them.
        files: The content by name.
        index, login: The two documents.
    """

    version: str
    files: dict[str, bytes]
    index: str
    login: str


@cache
def page_files() -> PageFiles:
    """Reads the files of the page, and checks the library against its pinned hash.

    Raises:
        RuntimeUnavailable: The library is missing, or was altered.
    """
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.is_file()}
    files[LIBRARY] = read_checked(f"page/{LIBRARY}")
    whole = hashlib.sha256(b"".join(hashlib.sha256(it).digest() for it in files.values()))
    version = whole.hexdigest()[:16]
    # The modules of the first view are loaded at once: found by their imports, they would be loaded
    # one by one. `app.js` imports the other views when they are needed.
    modules = ["app.js"]
    for name in modules:
        found = _IMPORT.findall(files[name].decode())
        modules += [it for it in dict.fromkeys(found) if it not in modules]
    links = "\n".join(f'<link rel="modulepreload" href="/page/{version}/{it}">' for it in modules)
    index, login = (
        files.pop(name).decode().replace("{{version}}", version).replace("{{preload}}", links)
        for name in ("index.html", "login.html")
    )
    return PageFiles(version, files, index, login)


# ---- The page ----


class PageServer:
    """The routes of the control page, and the sessions of browsers.

    Args:
        gateway: The gateway, which has the tokens and the logins.
        site: The names of the gateway.
        plain: The text for clients that do not accept HTML.
    """

    def __init__(self, gateway: "Gateway", site: Site, plain: str) -> None:
        self._gateway = gateway
        self._site = site
        self._plain = plain
        self.routes = [
            Route("/", self._index),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/session", self._show_session, methods=["GET", "POST"]),
            Route("/page/{version}/{name}", self._file),
        ]

    async def session_of(self, connection: HTTPConnection) -> Session | None:
        """Returns the session of the browser that sent a request or an upgrade."""
        name = _cookie_name(connection)
        cookie = connection.cookies.get(SECURE + name, "")
        if not cookie and not _is_secure(connection):
            # With TLS, a cookie without the prefix may come from a neighbour of our host name.
            cookie = connection.cookies.get(name, "")
        session = self._gateway.logins.find(cookie) if cookie else None
        if session is not None and await revoked(self._gateway.tokens, {session.grant.token}):
            self._gateway.log_out(session.id, "the token was revoked")
            return None
        return session

    async def page_session(self, socket: HTTPConnection) -> Session | None:
        """Returns the session of an upgrade that comes from our own page; None for all others."""
        origin = socket.headers.get("origin", "")
        if not self._site.is_own(origin, socket.headers.get("host", "")):
            return None
        return await self.session_of(socket)

    # ---- Documents ----

    async def _index(self, request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(self._plain, headers={"vary": "accept"})
        if await self.session_of(request) is None:
            return RedirectResponse("/login", 303, headers=NOT_KEPT)
        return _document(page_files().index)

    async def _login_page(self, request: Request) -> Response:
        return _document(page_files().login)

    async def _file(self, request: Request) -> Response:
        known, name = page_files(), request.path_params["name"]
        if name not in known.files or request.path_params["version"] != known.version:
            return PlainTextResponse("there is no such file: load the page again", 404)
        kept = {"cache-control": "private, max-age=31536000, immutable"}
        media_type = MEDIA_TYPES[Path(name).suffix]
        return Response(known.files[name], headers=kept, media_type=media_type)

    async def _show_session(self, request: Request) -> Response:
        """Tells the page whether the browser is logged in already, and which page is served now.

        A link from another site brings no cookie along, as the cookie is same-site.
        """
        session = await self.session_of(request)
        name = None if session is None else session.grant.principal
        known = {"principal": name, "page": page_files().version}
        return JSONResponse(known, headers=NOT_KEPT)

    # ---- Login ----

    async def _login(self, request: Request) -> Response:
        """Opens a session with a one-time code or a token; or says what to ask the person first."""
        try:
            given = await self._read(request)
            old = await self.session_of(request)
            grant, question = await self._grant(given, _address(request), old)
        except RpcError as error:
            body = {"error": error.to_json()}
            return JSONResponse(body, STATUSES.get(error.code, 400), headers=NOT_KEPT)
        request.scope["state"][TRUST]()
        if question is not None:
            return JSONResponse({"ask": question}, headers=NOT_KEPT)
        # The session that the browser had ends: nobody can have prepared the new one.
        if old is not None:
            self._gateway.log_out(old.id, "another login")
        response = JSONResponse({"principal": grant.principal}, headers=NOT_KEPT)
        cookie = self._gateway.logins.open(grant)
        await self._gateway.logins.save()
        _set_cookie(response, request, cookie)
        logger.info("login to the page: %s", grant.principal)
        return response

    async def _logout(self, request: Request) -> Response:
        try:
            await self._read(request)
        except RpcError as error:
            return JSONResponse({"error": error.to_json()}, STATUSES.get(error.code, 400))
        if (session := await self.session_of(request)) is not None:
            self._gateway.log_out(session.id, "logged out")
            await self._gateway.logins.save()
        response = JSONResponse({}, headers={**NOT_KEPT, "clear-site-data": '"cache", "storage"'})
        _set_cookie(response, request, "")
        return response

    async def _read(self, request: Request) -> JsonObject:
        """Reads the body of a request that only our own page can have sent.

        Raises:
            RpcError: The request comes from elsewhere, or its body is invalid.
        """
        origin, host = (request.headers.get(name, "") for name in ("origin", "host"))
        if not self._site.is_own(origin, host):
            raise RpcError("FORBIDDEN", "this request is accepted from the gateway's own page only")
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":  # another site could send a form without asking
            raise RpcError("INVALID_REQUEST", "the content type must be application/json")
        body = None
        with anyio.move_on_after(BODY_SECONDS):
            body = await read_bounded(request.stream(), MAX_BODY)
        try:
            given = json.loads(body or b"", parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            text = f"the body must be a JSON object of at most {MAX_BODY} bytes"
            raise RpcError("INVALID_REQUEST", text)
        return given

    async def _grant(
        self, given: JsonObject, address: str, old: Session | None
    ) -> tuple[Grant, JsonObject | None]:
        """Returns what a code or a token grants, and what to ask the person before that.

        A code may come from a stranger, who has a token too, and wants the person to act under the
        name of the stranger. So a person has to agree, except to a code of the token `local`: only
        those who own the state folder can make it.

        Raises:
            RpcError: Neither is valid, or too many attempts from the address have failed.
        """
        code, token = given.get("code"), given.get("token")
        if isinstance(token, str) and token:
            return Grant.of(await self._gateway.token_of(token, address, "login")), None
        if not isinstance(code, str) or not code:
            raise RpcError("INVALID_REQUEST", "`code` or `token` is required")
        check_attempts(self._gateway.attempts, address)
        logins = self._gateway.logins
        grant = logins.look_up(code)
        if grant is not None and not await revoked(self._gateway.tokens, {grant.token}):
            replaces = old is not None and old.grant.token != grant.token
            if (grant.principal != LOCAL or replaces) and given.get("confirmed") is not True:
                return grant, {
                    "principal": grant.principal,
                    "scopes": list[JsonValue](grant.scopes),
                    "current": None if old is None else old.grant.principal,
                }
            if logins.redeem(code) is not None:
                return grant, None
        self._gateway.attempts.fail(address)
        logger.warning("login: %s sent an unknown code", address)
        text = "this link was used already, or has expired: `clawmode dashboard` makes a new one"
        raise RpcError("UNAUTHORIZED", text)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _document(content: str) -> Response:
    headers = {**NOT_KEPT, "vary": "accept, cookie"}
    return Response(content, headers=headers, media_type=MEDIA_TYPES[".html"])


def _is_secure(connection: HTTPConnection) -> bool:
    """True if the browser uses TLS, also if a proxy ends it: the browser says so in `Origin`."""
    return connection.url.scheme in ("https", "wss") or connection.headers.get(
        "origin", ""
    ).startswith("https:")


def _cookie_name(connection: HTTPConnection) -> str:
    # With the port: browsers send a cookie to every port of a host, so that the sessions of two
    # gateways on one machine would replace each other.
    port = (connection.scope.get("server") or ("", 0))[1]
    return f"clawmode_session_{port}"


def _set_cookie(response: Response, request: Request, value: str) -> None:
    secure = _is_secure(request)
    response.set_cookie(
        (SECURE if secure else "") + _cookie_name(request),
        value,
        max_age=None if value else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
