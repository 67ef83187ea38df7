"""The HTTP interfaces of the gateway: OpenAI's chat completions and responses, and tool calls.

The client sends its token as `Authorization: Bearer`. Each agent is a model.
"""

import hashlib
import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clawmode.exceptions import ClawmodeError
from clawmode.gateway.dispatch import Dispatcher, as_rpc_error
from clawmode.gateway.http_turn import EndPart, HttpTurn, HttpTurns, Part, TurnRequest
from clawmode.gateway.openai_answers import (
    Answer,
    ChatAnswer,
    ResponseAnswer,
    RunFailed,
    collect,
    error_body,
)
from clawmode.gateway.openai_requests import OpenAiRequest, read_chat, read_response, wrong
from clawmode.rpc.http_server import TRUST
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.tokens import Token
from clawmode.tasks import background_tasks, read_bounded
from clawmode.text import without_escaped_surrogates
from clawmode.types import JsonObject, JsonValue, refuse_constant

logger = logging.getLogger("clawmode.gateway")

MAX_BODY = 32 << 20
BODY_SECONDS = 60.0
MAX_CONVERSATIONS = 1_000
SESSION_HEADER = "x-clawmode-session"

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
PATHS = ("GET /v1/models", "POST /v1/chat/completions", "POST /v1/responses")

STATUSES: dict[str, tuple[int, str]] = {
    "UNAUTHORIZED": (401, "authentication_error"),
    "FORBIDDEN": (403, "permission_error"),
    "NOT_FOUND": (404, "invalid_request_error"),
    "INVALID_REQUEST": (400, "invalid_request_error"),
    "TOO_LARGE": (413, "invalid_request_error"),
    "CONFLICT": (409, "invalid_request_error"),
    "RATE_LIMITED": (429, "rate_limit_error"),
    "UNAVAILABLE": (503, "server_error"),
}
"""The HTTP status and the type of OpenAI's error for the codes of the gateway."""

CODES = {"UNAUTHORIZED": "invalid_api_key", "RATE_LIMITED": "rate_limit_exceeded"}

EARLIER = "The conversation so far, as the client remembers it:\n\n{said}"


class HttpApi:
    """The routes of the HTTP interfaces.

    Args:
        dispatcher: Executes the requests.
        is_allowed: Whether a web page, if one sends the request, may do so.
    """

    def __init__(self, dispatcher: Dispatcher, is_allowed: Callable[[Request], bool]) -> None:
        self._gateway = dispatcher.gateway
        self._turns = HttpTurns(dispatcher)
        self._is_allowed = is_allowed
        # The sessions of chats that name none, by the digest of what was said in them.
        self._known: OrderedDict[str, str] = OrderedDict()
        self.routes = [
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._model)),
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/responses", self._guarded(self._respond), methods=["POST"]),
            Route("/tools/invoke", self._guarded(self._invoke), methods=["POST"]),
            # The routes above are preferred to this one unless the method does not fit.
            *(
                Route(path, self._guarded(self._nothing), methods=METHODS)
                for path in ("/v1", "/v1/{path:path}", "/models", "/chat/completions", "/responses")
            ),
        ]

    # ---- Every request ----

    def _guarded(
        self, handle: Callable[[Request, Token], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Authenticates a request, and turns exceptions into errors in OpenAI's shape."""

        async def serve(request: Request) -> Response:
            try:
                if not self._is_allowed(request):
                    text = "this origin may not connect: add it to gateway.allowedOrigins"
                    raise RpcError("FORBIDDEN", text)
                scheme, _, token = request.headers.get("authorization", "").partition(" ")
                if scheme.lower() != "bearer" or not token.strip():
                    text = "send the token of a client: Authorization: Bearer TOKEN"
                    raise RpcError("UNAUTHORIZED", text)
                address = request.client.host if request.client else ""
                found = await self._gateway.token_of(token.strip(), address, request.url.path)
                request.scope["state"][TRUST]()
                return await handle(request, found)
            except ClawmodeError as error:
                return _failure(as_rpc_error(error))
            except RunFailed as error:
                return JSONResponse(error_body(str(error), "server_error", "run_failed"), 502)
            except Exception as error:
                logger.exception("%s", request.url.path)
                text = f"the gateway failed ({type(error).__name__}): its log has the reason"
                return JSONResponse(error_body(text, "server_error", "internal"), 500)

        return serve

    async def _nothing(self, request: Request, token: Token) -> Response:
        """Answers a wrong path or method, such as those of a client whose base URL has no `/v1`."""
        asked = f"{request.method} {request.url.path[:200]}"
        text = f"there is no {asked}; the base URL ends with /v1, and has {', '.join(PATHS)}"
        if f"POST {request.url.path}" not in PATHS:
            raise RpcError("NOT_FOUND", text)
        body = error_body(text, "invalid_request_error", "method_not_allowed")
        return JSONResponse(body, 405, {"allow": "POST"})

    # ---- Models ----

    async def _agents(self, token: Token) -> list[str]:
        answer = await self._turns.call(self._turns.client(token), "agents.list", {})
        agents = answer["agents"]
        assert isinstance(agents, list)
        return [str(agent["id"]) for agent in agents if isinstance(agent, dict)]

    async def _models(self, request: Request, token: Token) -> Response:
        rows: list[JsonValue] = [self._describe(name) for name in await self._agents(token)]
        return JSONResponse({"object": "list", "data": rows})

    async def _model(self, request: Request, token: Token) -> Response:
        return JSONResponse(self._describe(await self._agent(token, request.path_params["name"])))

    def _describe(self, name: str) -> JsonObject:
        created = int(self._gateway.started_at)
        return {"id": name, "object": "model", "created": created, "owned_by": "clawmode"}

    async def _agent(self, token: Token, model: str) -> str:
        known = await self._agents(token)
        name = model.removeprefix("clawmode/")
        if name not in known:
            text = f"there is no model {model[:80]!r}; the agents are the models: "
            raise RpcError("NOT_FOUND", text + ", ".join(known), field="model")
        return name

    # ---- Turns ----

    async def _chat(self, request: Request, token: Token) -> Response:
        asked = read_chat(await _read(request))
        turn = await self._begin(request, token, asked)
        number = f"-{turn.responses}" if turn.responses else ""
        name = f"chatcmpl-{turn.run_id}{number}"
        return await self._answer(
            request, turn, asked, ChatAnswer(name, asked.model, asked.stream_usage)
        )

    async def _respond(self, request: Request, token: Token) -> Response:
        asked = read_response(await _read(request))
        turn = await self._begin(request, token, asked)
        name = f"resp_{turn.run_id}_{turn.responses}"
        return await self._answer(
            request, turn, asked, ResponseAnswer(name, asked.model, asked.previous)
        )

    async def _begin(self, request: Request, token: Token, asked: OpenAiRequest) -> HttpTurn:
        agent_id = await self._agent(token, asked.model)
        session, system = request.headers.get(SESSION_HEADER, ""), asked.system
        key = request.headers.get("idempotency-key", "")
        if asked.previous:
            run_id = asked.previous.removeprefix("resp_").partition("_")[0]
            row = await self._gateway.ledger.run(run_id)
            if row is None:
                text = f"there is no response {asked.previous[:80]!r}"
                raise RpcError("NOT_FOUND", text, field="previous_response_id")
            session = row.session_key
        elif not session and asked.user:
            digest = hashlib.sha256(f"{token.name}\0{asked.user}".encode()).hexdigest()
            session = f"openai-user-{digest[:24]}"
        elif not session:
            known = self._known.get(f"{token.name} {agent_id} {asked.digest()}")
            # A repeated request must name the session of the first one.
            seed = f"{token.name}\0{key}" if key else uuid.uuid4().hex
            session = known or f"openai-{hashlib.sha256(seed.encode()).hexdigest()[:32]}"
            if asked.history and not known:
                said = "\n\n".join(f"{role}: {text}" for role, text in asked.history)
                system = "\n\n".join(filter(None, (system, EARLIER.format(said=said))))
        turn = TurnRequest(
            agent_id=agent_id,
            session_key=session,
            message=asked.message,
            images=asked.images,
            system=system,
            functions=asked.functions,
            results=asked.results,
            key=key,
        )
        return await self._turns.begin(token, turn)

    async def _answer(
        self, request: Request, turn: HttpTurn, asked: OpenAiRequest, answer: Answer
    ) -> Response:
        parts = self._remembered(turn, asked, answer)
        if not asked.stream:
            return await self._whole(request, parts, answer)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        stream = self._stream(parts, answer)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _remembered(
        self, turn: HttpTurn, asked: OpenAiRequest, answer: Answer
    ) -> AsyncIterator[Part]:
        """Passes the parts on, and remembers by what was said how the conversation continues."""
        async for part in self._turns.parts(turn):
            if isinstance(part, EndPart) and part.reason == "stop":
                said = (("user", asked.message), ("assistant", answer.text))
                agent_id = turn.session_key.split(":")[1]
                key = f"{turn.client.principal} {agent_id} {asked.digest(said)}"
                self._known[key] = turn.session_key
                while len(self._known) > MAX_CONVERSATIONS:
                    self._known.popitem(last=False)
            yield part

    async def _whole(
        self, request: Request, parts: AsyncIterator[Part], answer: Answer
    ) -> Response:
        """Returns the whole answer. If the client goes away before that, the run is stopped."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async with background_tasks() as tasks:
            tasks.start_soon(watch)
            return JSONResponse(await collect(answer, parts))
        return Response(status_code=499)  # nobody reads it

    async def _stream(self, parts: AsyncIterator[Part], answer: Answer) -> AsyncIterator[str]:
        try:
            async for part in parts:
                if isinstance(part, EndPart) and part.error:
                    yield _event(error_body(part.error, "server_error", "run_failed"))
                    return
                for line in answer.add(part):
                    yield line
        except ClawmodeError as error:
            yield _event(error_body(str(error), "server_error", "unavailable"))

    # ---- Tools ----

    async def _invoke(self, request: Request, token: Token) -> Response:
        body = await _read(request)
        name = body.get("tool", body.get("name"))
        if not isinstance(name, str):
            raise wrong("tool", "expected the name or the id of a tool")
        params: JsonObject = {"name": name, "idempotencyKey": uuid.uuid4().hex}
        if key := request.headers.get("idempotency-key", ""):
            params["idempotencyKey"] = key
        for field in ("args", "sessionKey", "agentId", "confirm"):
            if field in body:
                params[field] = body[field]
        answer = await self._turns.call(self._turns.client(token), "tools.invoke", params)
        if answer["ok"] is True:
            return JSONResponse({"ok": True, "result": answer["output"]})
        return JSONResponse({"ok": False, "error": answer["error"]}, 422)


# ---- Bodies and errors ----


async def _read(request: Request) -> JsonObject:
    """Reads the body of a request.

    Raises:
        RpcError: The body is too large, too slow, or not a JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of a strange page cannot send this type
        raise RpcError("INVALID_REQUEST", "the body must be application/json")
    try:
        with anyio.fail_after(BODY_SECONDS):
            body = await read_bounded(request.stream(), MAX_BODY)
    except (TimeoutError, ClientDisconnect):
        raise RpcError("INVALID_REQUEST", "the body is not complete") from None
    if body is None:
        raise RpcError("TOO_LARGE", f"the body must have at most {MAX_BODY} bytes")
    try:
        text = body.decode("utf-8")
        data = without_escaped_surrogates(json.loads(text, parse_constant=refuse_constant), text)
    except (ValueError, RecursionError):
        raise RpcError("INVALID_REQUEST", "the body is not JSON") from None
    if not isinstance(data, dict):
        raise RpcError("INVALID_REQUEST", "the body is not a JSON object")
    return data


def _failure(error: RpcError) -> JSONResponse:
    status, kind = STATUSES.get(error.code, (500, "server_error"))
    code = CODES.get(error.code, error.code.lower())
    body = error_body(str(error), kind, code, error.field or None)
    return JSONResponse(body, status, failure_headers(error))


def failure_headers(error: RpcError) -> dict[str, str]:
    """Returns the headers of the response to a request that failed."""
    headers = {"www-authenticate": "Bearer"} if error.code == "UNAUTHORIZED" else {}
    if error.retry_after_ms:
        headers["retry-after"] = str(-(-error.retry_after_ms // 1000))
    return headers


def _event(body: JsonObject) -> str:
    return f"data: {json.dumps(body)}\n\n"
