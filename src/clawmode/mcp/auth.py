"""OAuth for MCP servers: the SDK's flow, with storage of tokens and a callback for the browser.

The user opens an address in a browser. The browser is then redirected to a port of this machine
that other machines cannot reach.
"""

import contextlib
import hashlib
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from anyio.abc import Listener, SocketStream
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from clawmode.addresses import Resolve, ask_system, find_target
from clawmode.exceptions import ToolProblem
from clawmode.files import write_atomic
from clawmode.mcp.settings import OAuth, ServerSettings

logger = logging.getLogger("clawmode.mcp")

LOGIN_SECONDS = 300.0
READ_SECONDS = 10.0
MAX_REQUEST = 16 << 10
HOST = "127.0.0.1"

PAGE = b"<!doctype html><title>clawmode</title><p>Done. You can close this window."

OnLogin: TypeAlias = Callable[[str, str], Awaitable[bool]]
"""Called with a server's name and the address at which the user logs in.

Returns False, or raises, if the user does not log in."""

Pause: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Suspends the time limits of a server while the user logs in."""


def make_auth(
    settings: ServerSettings,
    on_login: OnLogin | None,
    tokens: Path | None,
    pause: Pause,
    resolve: Resolve = ask_system,
) -> httpx2.Auth | None:
    """Returns the object that authorizes each request; None if the server does not use OAuth.

    Args:
        settings: The settings of the server.
        on_login: Asks the user to log in.
        tokens: The folder for tokens; without it they are kept in memory only.
        pause: Suspends time limits while the user logs in.
        resolve: Resolves host names.
    """
    wanted = settings.auth
    if not isinstance(wanted, OAuth) or not settings.enabled:
        return None
    scope = " ".join(wanted.scopes) or None
    storage = _TokenStorage(settings, tokens)
    if wanted.grant == "client_credentials":
        # Imports a JWT library, which is slow and rarely needed.
        from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

        assert wanted.client_id is not None
        assert wanted.client_secret is not None
        client = ClientCredentialsOAuthProvider(
            settings.url,
            storage,
            wanted.client_id,
            wanted.client_secret,
            scope=scope,
            issuer=wanted.issuer,
        )
        return _GuardedAuth(client, settings, resolve)
    login = _BrowserLogin(settings.name, on_login, pause, wanted.redirect_port or _free_port())
    metadata = OAuthClientMetadata.model_validate(
        {"redirect_uris": [login.address], "client_name": "clawmode", "scope": scope}
    )
    storage.expect(wanted, login.address)
    flow = OAuthClientProvider(settings.url, metadata, storage, login.begin, login.finish)
    return _GuardedAuth(flow, settings, resolve)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


# ---- Addresses of the flow ----


class _GuardedAuth(httpx2.Auth):
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


# ---- Tokens ----


class _TokenStorage:
    """Stores tokens and the client's registration, in memory and optionally in a file."""

    def __init__(self, settings: ServerSettings, folder: Path | None) -> None:
        key = hashlib.sha256(f"{settings.name}\0{settings.url}".encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{key}.json"
        self._address = ""
        self._client: OAuthClientInformationFull | None = None
        self._tokens: OAuthToken | None = None
        if self._path is None:
            return
        try:
            data = json.loads(self._path.read_bytes())
            self._tokens = OAuthToken.model_validate(data["tokens"]) if data["tokens"] else None
            if data["client"]:
                self._client = OAuthClientInformationFull.model_validate(data["client"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning(
                "the OAuth tokens in %s cannot be used: %s", self._path, type(error).__name__
            )

    def expect(self, wanted: OAuth, address: str) -> None:
        """Prepares the client: the configured one, or a stored registration for this address."""
        known = self._client.redirect_uris if self._client is not None else None
        if wanted.client_id is not None:
            self._client = OAuthClientInformationFull.model_validate(
                {
                    "client_id": wanted.client_id,
                    "client_secret": wanted.client_secret,
                    "redirect_uris": [address],
                    "token_endpoint_auth_method": (
                        "client_secret_post" if wanted.client_secret else "none"
                    ),
                }
            )
        elif address not in map(str, known or ()) and self._tokens is None:
            self._client = None

    def _write(self) -> None:
        if self._path is None:
            return
        data = {
            "tokens": self._tokens and self._tokens.model_dump(mode="json"),
            "client": self._client and self._client.model_dump(mode="json"),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self._path, json.dumps(data))

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens
        self._write()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info
        self._write()


# ---- Login in the browser ----


class _BrowserLogin:
    """Asks the user to log in, and receives the redirect of the browser."""

    def __init__(self, server: str, on_login: OnLogin | None, pause: Pause, port: int) -> None:
        self.address = f"http://{HOST}:{port}/callback"
        self._server = server
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
            raise OAuthFlowError("it requires a login, and no user can be asked")
        # Listen first: the browser may be redirected before `on_login` returns.
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=self._port)
        async with contextlib.AsyncExitStack() as open_until_asked:
            open_until_asked.push_async_callback(listener.aclose)
            with self._pause():
                willing = await self._on_login(self._server, url)
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
