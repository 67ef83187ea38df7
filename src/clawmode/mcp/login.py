"""`Login`: the OAuth login to an MCP server, renewed without a user and shared by all processes.

It is the SDK's flow with three changes. A request does not wait for the answer to another one. A
refused token is renewed by its refresh token before a user is asked. Processes that use the same
login take turns: a process locks and reads the file before it renews a token, because the
authorization server may accept a refresh token only once.
"""

import contextlib
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match, union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from clawmode.addresses import Resolve, ask_system
from clawmode.mcp.auth import (
    HOST,
    BrowserLogin,
    GuardedAuth,
    OnLogin,
    Pause,
    StoredLogin,
    TokenFile,
)
from clawmode.mcp.settings import OAuth, ServerSettings
from clawmode.types import dataclass

MAX_LEEWAY = 30.0
"""A token is renewed this many seconds before it expires, or a tenth of its life if shorter."""
ASSERTION_SECONDS = 300
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ALGORITHMS = ("RS256", "ES256", "EdDSA", "ES384", "ES512")


def make_auth(
    settings: ServerSettings,
    on_login: OnLogin | None,
    tokens: Path | None,
    pause: Pause,
    resolve: Resolve = ask_system,
    principal: str = "",
) -> httpx2.Auth | None:
    """Returns the object that authorizes each request; None if the server does not use OAuth.

    Args:
        settings: The settings of the server.
        on_login: Asks the user to log in.
        tokens: The folder for tokens; without it they are kept in memory only.
        pause: Suspends time limits while the user logs in.
        resolve: Resolves host names.
        principal: Whose login is used; empty for the login that all users share.
    """
    wanted = settings.auth
    if not isinstance(wanted, OAuth) or not settings.enabled:
        return None
    browser = None
    if wanted.grant == "authorization_code":
        with socket.socket() as probe:  # finds a free port
            probe.bind((HOST, 0))
            port = wanted.redirect_port or int(probe.getsockname()[1])
        browser = BrowserLogin(settings, on_login, pause, port)
    login = Login(settings, wanted, TokenFile(settings, tokens, principal), browser)
    return GuardedAuth(login, settings, resolve)


# ---- The flow ----


@dataclass
class _Context(OAuthContext):
    """Authenticates the client in the way that the authorization server supports."""

    wanted: OAuth = field(default_factory=OAuth)

    def prepare_token_auth(
        self, data: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        client, issuer = self.client_info, self.wanted.issuer
        if client is None:
            return super().prepare_token_auth(data, headers)
        if issuer is not None:
            found = None if self.oauth_metadata is None else str(self.oauth_metadata.issuer)
            if found is None or not issuers_match(found, issuer):
                self.oauth_metadata = None
                self.clear_tokens()
                raise OAuthFlowError(f"its authorization server is {found}, not {issuer}")
        if client.token_endpoint_auth_method is None or client.client_id in (
            self.wanted.client_id,
            self.wanted.client_metadata_url,
        ):
            method = self._method(client.client_secret)
            self.client_info = client.model_copy(update={"token_endpoint_auth_method": method})
            if method == "private_key_jwt":
                data["client_id"] = client.client_id
                data["client_assertion"] = self._assertion(client.client_id)
                data["client_assertion_type"] = ASSERTION_TYPE
            elif method == "none":
                data["client_id"] = client.client_id
        return super().prepare_token_auth(data, headers)

    def _method(self, secret: str | None) -> str:
        """Returns how the client proves who it is.

        Raises:
            OAuthTokenError: The authorization server supports none of the possible ways.
        """
        metadata = self.oauth_metadata
        supported = None if metadata is None else metadata.token_endpoint_auth_methods_supported
        # A server that names no methods supports Basic (RFC 8414).
        ours = ["private_key_jwt"] if self.wanted.private_key else []
        ours += ["client_secret_basic", "client_secret_post"] if secret else []
        for method in [*ours, "none"]:
            if supported is None or method in supported:
                return method
        if not ours:
            return "none"
        raise OAuthTokenError(
            f"its authorization server supports {', '.join(supported or [])}; "
            f"the configuration is for {' or '.join(ours)}"
        )

    def _assertion(self, client_id: str) -> str:
        """Returns a signed statement for the authorization server (RFC 7523)."""
        import jwt  # slow, and rarely needed

        metadata = self.oauth_metadata
        if metadata is None:
            raise OAuthFlowError("its authorization server publishes no metadata")
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": str(metadata.issuer),
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(16),
        }
        supported = metadata.token_endpoint_auth_signing_alg_values_supported or ALGORITHMS
        for algorithm in supported:
            # The type of the key decides which algorithms are possible.
            with contextlib.suppress(
                jwt.PyJWTError, TypeError, ValueError, NotImplementedError, AttributeError
            ):
                return jwt.encode(claims, self.wanted.private_key or "", algorithm=algorithm)
        text = f"`privateKey` is not a PEM key for one of {', '.join(supported)}"
        raise OAuthFlowError(text)


class Login(OAuthClientProvider):
    """The login to one server: adds its token to requests, renews it, or asks the user.

    Args:
        settings: The settings of the server.
        wanted: Its OAuth settings.
        file: Where the login is kept.
        browser: Asks the user; None for a client that authenticates by itself.
    """

    def __init__(
        self,
        settings: ServerSettings,
        wanted: OAuth,
        file: TokenFile,
        browser: "BrowserLogin | None",
    ) -> None:
        scope = " ".join(wanted.scopes) or None
        about: dict[str, Any] = {"client_name": "clawmode", "scope": scope}
        about["redirect_uris"] = None if browser is None else [browser.address]
        if browser is None:
            about["grant_types"] = ["client_credentials"]
        metadata = OAuthClientMetadata.model_validate(about)
        super().__init__(settings.url, metadata, self)
        self.context = _Context(
            server_url=settings.url,
            client_metadata=metadata,
            storage=self,
            redirect_handler=None if browser is None else browser.begin,
            callback_handler=None if browser is None else browser.finish,
            client_metadata_url=wanted.client_metadata_url,
            wanted=wanted,
        )
        self._wanted = wanted
        self._file = file
        self._turn = anyio.Lock()
        self._steps_up = False
        self._fixed: OAuthClientInformationFull | None = None
        if wanted.client_id is not None:
            self._fixed = OAuthClientInformationFull.model_validate(
                {
                    "client_id": wanted.client_id,
                    "client_secret": wanted.client_secret,
                    "redirect_uris": about["redirect_uris"],
                }
            )

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refusal: httpx2.Response | None = None
        shown = ""
        while True:
            async with self._turn:
                self._load()
                steps_up = refusal is not None and refusal.status_code == 403
                if not steps_up and self._can_renew(shown):
                    async with self._file.locked():
                        self._load()  # another process may have renewed the token meanwhile
                        if self._can_renew(shown):
                            answer = yield await self._refresh_token()
                            await self._handle_refresh_response(answer)
                if refusal is not None and self._token(shown) == "":
                    self._steps_up = steps_up
                    flow = super()._auth_flow(request)
                    try:
                        await anext(flow)  # the request, which was refused already
                        outgoing = await flow.asend(refusal)
                        while outgoing is not request:
                            outgoing = await flow.asend((yield outgoing))
                    finally:
                        await flow.aclose()
                self.context.protocol_version = request.headers.get("mcp-protocol-version")
                shown = self._token()
                if shown:
                    self._add_auth_header(request)
                else:
                    request.headers.pop("authorization", None)
            # Outside of the lock: an answer may take as long as the tool.
            response = yield request
            wants_more = (
                response.status_code == 403
                and extract_field_from_www_auth(response, "error") == "insufficient_scope"
            )
            if refusal is not None or not (response.status_code == 401 or wants_more):
                return
            refusal = response

    def _token(self, refused: str = "") -> str:
        """Returns the valid access token; empty if there is none, or if it was refused."""
        tokens = self.context.current_tokens
        token = tokens.access_token if tokens is not None and self.context.is_token_valid() else ""
        return "" if token == refused else token

    def _can_renew(self, refused: str) -> bool:
        return self._token(refused) == "" and self.context.can_refresh_token()

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        """Reads the answer to a refresh. An error of the server itself is worth a retry."""
        if response.status_code >= 500 or response.status_code == 429:
            raise httpx2.ConnectError(f"its login answered HTTP {response.status_code}")
        return await super()._handle_refresh_response(response)

    async def _perform_authorization(self) -> httpx2.Request:
        context = self.context
        if self._wanted.scopes and not self._steps_up:
            # Without this, the server's own list would replace the configured scopes.
            context.client_metadata.scope = " ".join(self._wanted.scopes)
        elif self._wanted.scopes:
            scope = union_scopes(" ".join(self._wanted.scopes), context.client_metadata.scope)
            context.client_metadata.scope = scope
        if self._wanted.grant != "client_credentials":
            return await super()._perform_authorization()
        data = {"grant_type": "client_credentials"}
        data, headers = context.prepare_token_auth(data, {})
        if context.should_include_resource_param(context.protocol_version):
            data["resource"] = context.get_resource_url()
        if context.client_metadata.scope:
            data["scope"] = context.client_metadata.scope
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self._wanted.issuer
        ours = (each for each in advertised if issuer and issuers_match(each, issuer))
        return next(ours, advertised[0])

    # ---- Storage ----

    def _load(self) -> None:
        """Takes over what this or another process has stored."""
        context = self.context
        stored = self._file.changed()
        if stored is not None:
            context.current_tokens = stored.tokens
            self._expire(stored.expires_at)
            context.client_info = stored.client
            context.oauth_metadata = stored.metadata or context.oauth_metadata
            context.protected_resource_metadata = (
                stored.resource or context.protected_resource_metadata
            )
            if stored.resource is not None:
                servers = [str(url) for url in stored.resource.authorization_servers]
                context.auth_server_url = self._select_authorization_server(servers)
        client, addresses = context.client_info, context.client_metadata.redirect_uris or []
        if self._fixed is not None:
            context.client_info = self._fixed
        elif client is not None and context.current_tokens is None:
            # A registration is for an address; the port may be another one this time.
            if not set(addresses) <= set(client.redirect_uris or []):
                context.client_info = None
        self._initialized = True

    def _expire(self, expires_at: float | None) -> None:
        tokens = self.context.current_tokens
        life = tokens.expires_in if tokens is not None else None
        leeway = min(MAX_LEEWAY, (life or 0) / 10)
        self.context.token_expiry_time = None if expires_at is None else expires_at - leeway

    async def get_tokens(self) -> OAuthToken | None:
        self._load()
        return self.context.current_tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        self._load()
        return self.context.client_info

    async def set_tokens(self, tokens: OAuthToken) -> None:
        life = tokens.expires_in or 0
        # A life of 0 would renew the token before every request.
        expires_at = time.time() + life if life > 0 else None
        self._expire(expires_at)
        context = self.context
        self._file.write(
            StoredLogin(
                tokens=tokens,
                # The configuration has the secret of a configured client.
                client=None if self._fixed is not None else context.client_info,
                expires_at=expires_at,
                metadata=context.oauth_metadata,
                resource=context.protected_resource_metadata,
            )
        )

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._file.write(StoredLogin(client=client_info))
