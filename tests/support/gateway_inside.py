"""A gateway without a wire: a whole host over a scripted model, and clients that call methods."""

import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from clawmode.agent.models import ModelPool
from clawmode.app.host import open_host
from clawmode.app.loading import set_up
from clawmode.app.setup import Options
from clawmode.config import resolve as settings
from clawmode.cron.job import configured_jobs
from clawmode.cron.jobs import Jobs
from clawmode.gateway.approvals import SharedQuestions
from clawmode.gateway.clients import Client
from clawmode.gateway.dispatch import Dispatcher
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.ledger import Ledger
from clawmode.gateway.method_table import METHODS
from clawmode.messages import ToolMessage
from clawmode.rpc.protocol import ClientInfo, Hello, parse
from clawmode.rpc.scopes import SCOPES, expand
from clawmode.rpc.tokens import Tokens
from clawmode.testing import ScriptedModel
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

ANY: JsonObject = {"type": "object"}


class Refused(Exception):
    """A request that was answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.details: dict[str, Any] = error.get("details", {})

    @property
    def field(self) -> str | None:
        return self.details.get("field")


@dataclass
class Inside:
    """A gateway that is open, and a client that may do everything."""

    gateway: Gateway
    dispatcher: Dispatcher
    model: ScriptedModel
    config: Path
    admin: Client

    def client(self, *scopes: str, name: str = "somebody") -> Client:
        """Somebody who is connected."""
        made = Client(
            Hello(min_protocol=1, max_protocol=9, client=ClientInfo(id=name)),
            name,
            expand(scopes),
            token="",
        )
        self.gateway.join(made, ())
        return made

    async def call(self, method: str, client: Client | None = None, /, **given: Any) -> Any:
        """What a request is answered with.

        Raises:
            Refused: An error.
        """
        if method in METHODS and METHODS[method].effect:
            given.setdefault("idempotencyKey", uuid.uuid4().hex)
        frame = await self.answer(client or self.admin, method, given)
        if not frame["ok"]:
            raise Refused(frame["error"])
        return frame["payload"]

    async def answer(self, client: Client, method: str, given: dict[str, Any]) -> dict[str, Any]:
        with anyio.fail_after(15):
            text = json.dumps({"type": "req", "id": "1", "method": method, "params": given})
            frame = await self.dispatcher.answer(client, parse(text, connected=True))
        return json.loads(frame)

    async def code(self, method: str, client: Client | None = None, /, **given: Any) -> str:
        """The code with which a request is refused, and the field."""
        try:
            await self.call(method, client, **given)
        except Refused as refused:
            return f"{refused.code} {refused.field or ''}".strip()
        return "ok"

    def read_last(self) -> str:
        """What the model read last: the result of a call."""
        last = self.model.requests[-1].messages[-1]
        assert isinstance(last, ToolMessage)
        return last.text

    def backup(self) -> str | None:
        """The configuration file before the last one."""
        path = Path(f"{self.config}.bak")
        return path.read_text() if path.exists() else None

    def configure(self, **sections: Any) -> None:
        """Writes another configuration file."""
        write(self.config, sections)


def events(client: Client, *names: str) -> list[dict[str, Any]]:
    """What a client was told, of these kinds."""
    told = [json.loads(frame) for frame in client._frames]
    return [it["payload"] for it in told if it.get("event") in names]


def write(path: Path, sections: dict[str, Any]) -> None:
    data: dict[str, Any] = {"plugins": {"enabled": False}, **sections}
    # Most tests are not about approval.
    rules = {"approve": "always", **data.get("tools", {})}
    data["tools"] = {key: value for key, value in rules.items() if value is not None}
    defaults = data.setdefault("agents", {}).setdefault("defaults", {})
    defaults.setdefault("model", "scripted/a")
    path.write_text(json.dumps(data, indent=2))


def echo(name: str = "echo", **more: Any) -> Tool:
    """A tool that answers what it is given."""

    async def run(given: JsonObject, context: ToolContext) -> JsonObject:
        return {"said": given, "sender": context.run.sender, "session": context.run.session_key}

    return Tool(name, "Answers what it is given.", ANY, run, **more)


@asynccontextmanager
async def inside(
    folder: Path,
    script: list[Any] | None = None,
    *,
    tools: Iterable[Tool] = (),
    rules: dict[str, Any] | None = None,
    **sections: Any,
) -> AsyncIterator[Inside]:
    """Opens a gateway with these sections in its configuration file; `rules` is its `tools`."""
    config = folder / "clawmode.json5"
    write(config, {**sections, "tools": rules or {}})
    setup = set_up(Options(config=str(config), state=str(folder / "state")))
    setup = replace(setup, tools=[*tools])
    mode = partial(settings.approve_mode, setup.configuration)
    model, questions = ScriptedModel(script or []), SharedQuestions(mode)
    models = ModelPool(setup.configuration, {"scripted/*": model})
    made: list[Gateway] = []
    async with open_host(
        setup, questions.approvals, models, on_chat=lambda it: made[0].chat(it)
    ) as host:
        gateway = Gateway(
            host=host,
            questions=questions,
            tokens=Tokens(setup.state, ()),
            ledger=Ledger(setup.state, "test"),
            jobs=Jobs(setup.state, configured_jobs(setup.configuration.cron)),
        )
        made.append(gateway)
        admin = Client(
            Hello(min_protocol=1, max_protocol=9, client=ClientInfo(id="admin")),
            "admin",
            expand(SCOPES),
            token="",
        )
        try:
            async with gateway.open():
                gateway.join(admin, ())
                yield Inside(gateway, Dispatcher(gateway, METHODS), model, config, admin)
                for run in host.runtime.runs():
                    host.runtime.abort(run.id)
        finally:
            gateway.ledger.close()
            gateway.jobs.close()
