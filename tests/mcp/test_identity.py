"""Access tokens of an identity provider at `clawmode mcp --http`, with a real issuer over HTTP."""

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.support.face_driver import TOOLS, connected, read, served

from clawmode.mcp.identity import RETRY_SECONDS, Issuer, NotAdmitted, Principal

pytestmark = pytest.mark.anyio

AUDIENCE = "http://127.0.0.1/mcp"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, key_id: str, kind: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(kind).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": key_id, "use": "sig"}


class Provider:
    """An identity provider: its metadata and its keys."""

    def __init__(self) -> None:
        self.keys = [public(RSA, "rsa", "RS256"), public(ED, "ed", "EdDSA")]
        self.keys.append({"kty": "oct", "kid": "oct", "k": "AAAA", "use": "sig"})
        self.requests = 0
        self.claimed = ""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                answers = {
                    "/realm/.well-known/openid-configuration": {
                        "issuer": provider.claimed or provider.url,
                        "jwks_uri": f"{provider.url}/keys",
                    },
                    "/realm/keys": {"keys": provider.keys},
                }
                self.send_response(200 if self.path in answers else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answers.get(self.path, {})).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/realm"

    def token(self, key: Any = RSA, kind: str = "RS256", key_id: str = "rsa", **more: Any) -> str:
        claims = {
            "iss": self.url,
            "sub": "ann",
            "aud": AUDIENCE,
            "exp": time.time() + 600,
            "scope": "tools other",
        }
        claims |= more
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, key, kind, {"kid": key_id})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.mark.covers("MF-7")
async def test_users_of_an_identity_provider_are_told_apart(provider: Provider) -> None:
    issuer = Issuer(provider.url, AUDIENCE, "tools")
    ann = await issuer.verify(provider.token(email="ann@example.com"))
    assert ann == await issuer.verify(provider.token(ED, "EdDSA", "ed", email="ann@example.com"))
    assert ann.name == "ann@example.com"
    bob = await issuer.verify(provider.token(sub="bob", scope=None, scp=["tools"], aud=[AUDIENCE]))
    assert isinstance(bob, Principal)
    assert bob.id != ann.id


def by_secret(body: str, key_id: str, secret: bytes) -> str:
    """A token with a good body that is signed by a shared secret."""
    head = json.dumps({"alg": "HS256", "kid": key_id, "typ": "JWT"}).encode()
    signed = f"{base64.urlsafe_b64encode(head).decode().rstrip('=')}.{body}"
    mark = hmac.digest(secret, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mark).decode().rstrip('=')}"


@pytest.mark.hostile
@pytest.mark.covers("MF-7")
async def test_a_token_that_is_not_for_this_server_is_not_accepted(provider: Provider) -> None:
    issuer = Issuer(provider.url, AUDIENCE, "tools")
    pem = RSA.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = provider.token()
    head, body, mark = good.split(".")
    tokens = {
        "none": jwt.encode({"sub": "ann"}, "", "none", {"kid": "rsa"}),
        "public key as secret": by_secret(body, "rsa", pem),
        "shared secret": by_secret(body, "oct", b"\0\0\0"),
        "other key": provider.token(STRANGER, "ES256"),
        "other algorithm": provider.token(EC, "ES256", "ed"),
        "unknown key": provider.token(STRANGER, "ES256", "new"),
        "audience": provider.token(aud="https://other.example/mcp"),
        "no audience": provider.token(aud=None),
        "issuer": provider.token(iss="https://other.example"),
        "slash": provider.token(iss=f"{provider.url}/"),
        "no issuer": provider.token(iss=None),
        "expired": provider.token(exp=time.time() - 60),
        "no expiry": provider.token(exp=None),
        "not yet": provider.token(nbf=time.time() + 600),
        "no user": provider.token(sub=None),
        "empty user": provider.token(sub=""),
        "scope": provider.token(scope="toolsother"),
        "no scope": provider.token(scope=None),
        "signature": f"{head}.{body}.{mark[:-8]}AAAAAAAA",
        "body": f"{head}.{body[:-4]}AAAA.{mark}",
        "words": "no token",
        "dots": "..",
        "long": "a" * 100_000,
    }
    for what, token in tokens.items():
        with pytest.raises(NotAdmitted) as caught:
            await issuer.verify(token)
        expected = "insufficient_scope" if "scope" in what else "invalid_token"
        assert caught.value.error == expected, what
        assert caught.value.is_guess is (what not in ("expired", "scope", "no scope")), what
    assert await issuer.verify(good)


@pytest.mark.covers("MF-7")
async def test_new_keys_are_fetched_but_unknown_keys_cause_no_flood(provider: Provider) -> None:
    now = 0.0
    issuer = Issuer(provider.url, AUDIENCE, clock=lambda: now)
    assert await issuer.verify(provider.token())
    before = provider.requests
    provider.keys.append(public(EC, "ec", "ES256"))
    new = provider.token(EC, "ES256", "ec")
    for _ in range(20):
        with pytest.raises(NotAdmitted):
            await issuer.verify(new)
    assert provider.requests == before
    now = RETRY_SECONDS
    assert await issuer.verify(new)
    provider.keys.pop()


@pytest.mark.hostile
@pytest.mark.covers("MF-7")
async def test_metadata_of_another_issuer_is_not_believed(provider: Provider) -> None:
    provider.claimed = "https://other.example"
    try:
        with pytest.raises(NotAdmitted) as caught:
            await Issuer(provider.url, AUDIENCE).verify(provider.token())
    finally:
        provider.claimed = ""
    assert caught.value.error == "temporarily_unavailable"


@pytest.mark.covers("MF-7", "MF-6")
async def test_clients_learn_where_to_log_in_and_users_share_nothing(
    tmp_path: Path, provider: Provider
) -> None:
    (tmp_path / "mine.py").write_text(TOOLS)
    options = ("--public-url", AUDIENCE, "--oauth-issuer", provider.url, "--oauth-scope", "tools")
    async with served(tmp_path, *options) as url:
        async with httpx2.AsyncClient() as client:
            bare = await client.post(url, json={})
            assert bare.status_code == 401
            challenge = bare.headers["www-authenticate"]
            where = "http://127.0.0.1/.well-known/oauth-protected-resource/mcp"
            assert f'resource_metadata="{where}"' in challenge
            assert 'scope="tools"' in challenge
            base = url.removesuffix("/mcp")
            about = (await client.get(f"{base}/.well-known/oauth-protected-resource/mcp")).json()
            assert about["resource"] == AUDIENCE
            assert about["authorization_servers"] == [provider.url]
            headers = {"authorization": f"Bearer {provider.token(scope='x')}"}
            weak = await client.post(url, headers=headers, json={})
            assert weak.status_code == 403
            assert 'error="insufficient_scope"' in weak.headers["www-authenticate"]
        park = {"code": "await yield_control(); return 1"}
        async with connected(url, provider.token(), mode="legacy") as ann:
            run_id = read(await ann.call_tool("exec", park))["runId"]
        async with connected(url, provider.token(sub="bob"), mode="legacy") as bob:
            told = read(await bob.call_tool("wait", {"runId": run_id}))
            assert told["code"] == "invalid_input"
        # Another token of the same user finds the program.
        async with connected(url, provider.token(jti="2"), mode="legacy") as again:
            assert read(await again.call_tool("wait", {"runId": run_id}))["value"] == 1
