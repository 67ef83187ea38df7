"""An OAuth authorization server for tests, and a person who logs in there."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.web_server import Request, WebServer


@dataclass
class Authority:
    """An authorization server, and the door of the MCP server that it guards."""

    web: WebServer | None = None
    asked: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    token: str = "acc3ss-token-1"
    refresh_token: str = "r3fresh-token"
    about: dict[str, Any] = field(default_factory=dict)
    rotates: bool = False
    broken: bool = False
    life: int = 3600
    expired: list[str] = field(default_factory=list)

    def expire(self) -> None:
        """Let the access token expire; a client that shows it is noted in `expired`."""
        self.token = f"acc3ss-token-{len(self.forms) + 2}"

    def issue(self, form: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """Answer a token request. A refresh token that was used before ends the login."""
        if self.broken:
            return "503 Service Unavailable", {}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] != self.refresh_token:
                self.refresh_token = "none"
                return "400 Bad Request", {"error": "invalid_grant"}
            if self.rotates:
                self.token = f"acc3ss-token-{len(self.forms) + 1}"
                self.refresh_token = f"r3fresh-token-{len(self.forms) + 1}"
        tokens = {"access_token": self.token, "token_type": "Bearer", "expires_in": self.life}
        return "200 OK", tokens | {"refresh_token": self.refresh_token}

    async def __call__(self, request: Request) -> bool:
        assert self.web is not None
        path = urlsplit(request.path).path
        self.asked.append(path)
        origin = self.web.url.removesuffix("/mcp")
        if path == "/mcp":
            shown = request.headers.get("authorization")
            if shown == f"Bearer {self.token}":
                return False
            self.expired += [shown] if shown else []
            await request.send(b"", status="401 Unauthorized", kind="text/plain")
        elif path.startswith("/.well-known/oauth-protected-resource"):
            await self._json(request, {"resource": self.web.url, "authorization_servers": [origin]})
        elif path.startswith("/.well-known/oauth-authorization-server"):
            await self._json(
                request,
                {
                    "issuer": origin,
                    "authorization_endpoint": f"{origin}/authorize",
                    "token_endpoint": f"{origin}/token",
                    "registration_endpoint": f"{origin}/register",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["authorization_code", "client_credentials"],
                    "code_challenge_methods_supported": ["S256"],
                    **self.about,
                },
            )
        elif path == "/register":
            await self._json(request, {"client_id": "registered", **request.message}, "201 Created")
        elif path == "/token":
            form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
            self.forms.append(form)
            self.headers.append(request.headers.get("authorization", ""))
            status, answer = self.issue(form)
            await self._json(request, answer, status)
        else:
            await request.send(b"", status="404 Not Found", kind="text/plain")
        return True

    @staticmethod
    async def _json(request: Request, value: Any, status: str = "200 OK") -> None:
        await request.send(json.dumps(value).encode(), status=status)


async def go(request: Request) -> None:
    await request.answer({"content": []})


@dataclass
class Person:
    """Opens the address, logs in, and is sent back. The page comes when somebody listens."""

    windows: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    code: str = "c0de"

    async def __call__(self, server: str, address: str) -> bool:
        query = parse_qs(urlsplit(address).query)
        back = urlsplit(query["redirect_uri"][0])
        reader, writer = await asyncio.open_connection(back.hostname, back.port)
        target = f"{back.path}?code={self.code}&state={query['state'][0]}"
        writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        self.windows.append((reader, writer))
        return True
