"""The parts of an OAuth login to an MCP server: its file, its addresses, and the browser.

The user opens an address in a browser. The browser is then redirected to a port of this machine
that other machines cannot reach. `login` has the flow itself.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from anyio.abc import Listener, SocketStream
from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from clawmode.addresses import Resolve, ask_system, find_target
from clawmode.exceptions import ToolProblem
from clawmode.files import open_lock, try_lock, write_atomic
from clawmode.mcp.settings import OAuth, ServerSettings
from clawmode.records import Record

logger = logging.getLogger("clawmode.mcp")

LOGIN_SECONDS = 300.0
READ_SECONDS = 10.0
REQUEST_SECONDS = 30.0
"""Time limit of each request of the flow, apart from the one that needs the token."""
RENEW_SECONDS = 60.0
"""The longest time to wait for another process that renews the same login."""
POLL = 0.02
MAX_REQUEST = 16 << 10
HOST = "127.0.0.1"

PAGE = b"<!doctype html><title>clawmode</title><p>Done. You can close this window."

OnLogin: TypeAlias = Callable[[str, str], Awaitable[bool]]
"""Called with a server's name and the address at which the user logs in.

Returns False, or raises, if the user does not log in."""

Pause: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Suspends the time limits of a server while the user logs in."""


# ---- Tokens ----


class StoredLogin(Record):
    """What is kept of a login: the tokens, the client, and where a token is renewed.

    Attributes:
        expires_at: When the access token expires, in seconds since 1970; None if unknown.
        metadata: The authorization server that issued the tokens.
        resource: What the MCP server said about itself.
    """

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    expires_at: float | None = None
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile:
    """The file of one login. Without a folder, nothing is kept.

    Args:
        settings: The settings of the server.
        folder: The folder of all logins.
        principal: Whose login it is; empty for the login that all users share.
    """

    def __init__(self, settings: ServerSettings, folder: Path | None, principal: str = "") -> None:
        owner = f"\0{principal}" if principal else ""
        whose = f"{settings.name}\0{settings.url}{owner}"
        key = hashlib.sha256(whose.encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{key}.json"
        self._version: tuple[int, ...] = ()

    def changed(self) -> StoredLogin | None:
        """Returns the content if the file has changed since the last `changed` or `write`."""
        if self._path is None:
            return None
        try:
            version = self._stamp(self._path)
            if version == self._version:
                return None
            self._version = version
            return StoredLogin.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            kind = type(error).__name__
            logger.warning("the OAuth tokens in %s cannot be used: %s", self._path, kind)
            return None

    def write(self, login: StoredLogin) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self._path, login.model_dump_json(exclude_none=True))
            self._version = self._stamp(self._path)
        except OSError as error:
            logger.warning("the OAuth tokens cannot be kept in %s: %s", self._path, error.strerror)

    @staticmethod
    def _stamp(path: Path) -> tuple[int, ...]:
        about = os.stat(path)
        return about.st_ino, about.st_mtime_ns, about.st_size

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Holds the lock of the login, which all processes share.

        Raises:
            ConnectError: Another process holds the lock for too long.
        """
        if self._path is None:
            yield
            return
        descriptor = open_lock(self._path.with_suffix(".lock"))
        try:
            deadline = anyio.current_time() + RENEW_SECONDS
            while not try_lock(descriptor):
                if anyio.current_time() > deadline:
                    text = f"another process has been renewing its login for {RENEW_SECONDS:g} s"
                    raise httpx2.ConnectError(text)
                await anyio.sleep(POLL)
            yield
        finally:
            os.close(descriptor)


# ---- Addresses of the flow ----


class GuardedAuth(httpx2.Auth):
    """Keeps an OAuth flow away from private addresses, unless the server is at one itself.

    The server chooses the addresses of the flow: of its metadata, of the authorization server, of
    the token endpoint. A public server could name an address in our network (SSRF). The request
    goes to the IP address that was checked, so that a second DNS answer cannot change it.
    """

    requires_response_body = True

    def __init__(
        self, inner: httpx2.Auth, settings: ServerSettings, resolve: Resolve = ask_system
    ) -> None:
        self._inner = inner
        self._resolve = resolve
        issuer = settings.auth.issuer if isinstance(settings.auth, OAuth) else None
        self._home = httpx2.URL(settings.url)
        # The operator has chosen these two, so that they are not checked.
        self._chosen = {_host(httpx2.URL(each)) for each in (settings.url, issuer) if each}
        self._is_private: bool | None = None

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._inner.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    limits = httpx2.Timeout(REQUEST_SECONDS).as_dict()
                    outgoing.extensions.setdefault("timeout", limits)
                sent = await self._pinned(outgoing)
                response = yield sent
                if sent is not outgoing:
                    _unpin(response, outgoing)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _pinned(self, request: httpx2.Request) -> httpx2.Request:
        """Returns the request with the host replaced by an IP address that was checked.

        Raises:
            OAuthFlowError: The address is not allowed.
        """
        host, port = _host(request.url)
        if (host, port) in self._chosen or await self._server_is_private():
            return request
        is_address = ":" in host or host.rpartition(".")[2][:1].isdigit()
        proxies = getproxies()
        has_proxy = proxies.get(request.url.scheme) or proxies.get("all")
        if has_proxy and not is_address and not proxy_bypass(request.url.host):
            return request  # the proxy resolves the name, in its own network
        try:
            target = await find_target(host, port, resolve=self._resolve)
        except ToolProblem as problem:
            text = f"its login uses an address that is not allowed: {problem}"
            raise OAuthFlowError(text) from None
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=target.addresses[0]),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": target.host},
        )

    async def _server_is_private(self) -> bool:
        """True if the server itself is at a private address."""
        if self._is_private is None:
            try:
                await find_target(*_host(self._home), resolve=self._resolve)
                self._is_private = False
            except ToolProblem as problem:
                self._is_private = problem.code == "private_address"
        return self._is_private


def _host(url: httpx2.URL) -> tuple[str, int]:
    return url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)


def _unpin(response: httpx2.Response, request: httpx2.Request) -> None:
    """Restores the host names in a response, because redirects are resolved against them."""
    response.request = request
    if (following := response.next_request) is not None:
        location = request.url.join(response.headers["location"])
        following.url = location
        following.headers["host"] = location.netloc.decode("ascii")


# ---- Login in the browser ----


class BrowserLogin:
    """Asks the user to log in, and receives the redirect of the browser."""

    def __init__(
        self, settings: ServerSettings, on_login: OnLogin | None, pause: Pause, port: int
    ) -> None:
        self.address = f"http://{HOST}:{port}/callback"
        self._settings = settings
        self._on_login = on_login
        self._pause = pause
        self._port = port
        self._listener: Listener[SocketStream] | None = None

    async def begin(self, url: str) -> None:
        """Asks the user to open an address.

        Raises:
            OAuthFlowError: The user does not.
        """
        if self._on_login is None:
            command = self._settings.login_command
            way_out = f"run `{command}`" if command else "no user can be asked"
            raise OAuthFlowError(f"it requires a login, and {way_out}")
        # Listen first: the browser may be redirected before `on_login` returns.
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=self._port)
        async with contextlib.AsyncExitStack() as open_until_asked:
            open_until_asked.push_async_callback(listener.aclose)
            with self._pause():
                willing = await self._on_login(self._settings.name, url)
            if not willing:
                raise OAuthFlowError("it requires a login, and the user did not log in")
            open_until_asked.pop_all()
        self._listener = listener

    async def finish(self) -> AuthorizationCodeResult:
        """Waits for the redirect of the browser.

        Raises:
            OAuthFlowError: The redirect does not come in time, or reports an error.
        """
        assert self._listener is not None
        found: dict[str, str] = {}

        async with self._listener, anyio.create_task_group() as tasks:

            async def serve(stream: SocketStream) -> None:
                async with stream:
                    if query := await _read_callback(stream):
                        found.update(query)
                        tasks.cancel_scope.cancel()

            with self._pause(), anyio.move_on_after(LOGIN_SECONDS):
                await self._listener.serve(serve)
        if "code" not in found:
            reason = found.get("error", "the browser did not return")
            raise OAuthFlowError(f"the login failed: {reason[:100]}")
        return AuthorizationCodeResult(
            code=found["code"], state=found.get("state"), iss=found.get("iss")
        )


async def _read_callback(stream: SocketStream) -> dict[str, str]:
    """Returns the query of the redirect; empty if the request is a different one."""
    request = b""
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, TimeoutError):
        with anyio.fail_after(READ_SECONDS):
            while b"\r\n\r\n" not in request and len(request) < MAX_REQUEST:
                request += await stream.receive()
        target = request.split(b" ", 2)[1].decode("ascii", "replace") if b" " in request else ""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        is_callback = url.path == "/callback" and ("code" in query or "error" in query)
        status, body = (b"200 OK", PAGE) if is_callback else (b"404 Not Found", b"")
        length = str(len(body)).encode()
        await stream.send(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: text/html\r\nconnection: close\r\n"
            b"content-length: " + length + b"\r\n\r\n" + body
        )
        return query if is_callback else {}
    return {}
