"""A gateway with conversations to look at: its tools, and a model that does what the words say."""

from typing import Any

from playwright.async_api import Locator, Page
from tests.support.browser_driver import Desk
from tests.support.waiting import until

from clawmode.rpc.client import GatewayClient
from clawmode.testing import ScriptRequest, Turn, call, pause
from clawmode.testing.scripted import Pause
from clawmode.types import dataclass

SHOP = '''
import anyio
from clawmode import tool

PRICES = {"tea": 3, "coffee": 5, "cake": 7}

@tool(effect="read")
async def price(item: str) -> int:
    """Look up the price of an item."""
    return PRICES[item]

@tool(effect="write")
async def order(item: str, count: int = 1) -> str:
    """Order an item for good."""
    return f"{count} {item}"

TOOLS = [price, order]
'''

PRICES = """\
// What do they cost?
const prices = await Promise.all(["tea", "coffee"].map((item) => tools.price({ item })));
text("looked up " + prices.length);
return { tea: prices[0], coffee: prices[1] };
"""
MANY = """\
for (let n = 0; n < 230; n++) await tools.price({ item: "tea" });
return "asked 230 times";
"""
LOST = 'await tools.price({ item: "gold" });'
BEGINNING = "one two three four five six seven "
REST = "eight nine ten eleven twelve thirteen fourteen"

go_on: set[str] = set()
"""The messages whose answers are not held any longer."""


@dataclass(frozen=True)
class Held(Pause):
    """Interrupts the stream until the test, which is in another thread, adds a message to `go_on`.

    Attributes:
        message: The message.
    """

    message: str = ""

    async def wait(self) -> None:
        await until(lambda: self.message in go_on, 60)


def model(asked: ScriptRequest) -> Turn:
    """Runs the program that the message names, then says what it gave."""
    programs = {"prices": PRICES, "many": MANY, "lost": LOST}
    name = asked.said.partition(" ")[0]
    if name in programs and not asked.results:
        return Turn(f"I run {name}.", call("exec", {"code": programs[name]}))
    if name == "stream":
        return Turn(BEGINNING, Held(0.0, asked.said), REST)
    if name == "hold":
        return Turn("I hold this, ", pause(60.0))
    if name == "think":
        first = Turn("I look ", pause(0.3), "first.", call("exec", {"code": "return 1"}))
        return Turn(pause(60.0)) if asked.results else first
    if name == "long":
        return Turn("It takes long: ", *(f"step {n}, " for n in range(400)), delay=0.1)
    return Turn(f"Done: {asked.said}")


def said(page: Page, words: str) -> Locator:
    """Words in the conversation that a page shows."""
    return page.get_by_label("Conversation", exact=True).get_by_text(words)


async def quiet(client: GatewayClient, key: str) -> None:
    """Waits until nothing runs in a session, and no message waits."""

    async def is_quiet() -> bool:
        found = await client.call("sessions.get", {"sessionKey": key})
        return not found["runs"] and not found["waiting"]

    await until(is_quiet, 15)


async def talk(desk: Desk, key: str, *messages: str, title: str = "") -> str:
    """Sends messages to a new session, one after the other, and waits for the replies."""
    async with desk.client() as client:
        given = {"sessionKey": key, **({"title": title} if title else {})}
        made: Any = await client.call("sessions.create", given)
        for message in messages:
            await client.call("chat.send", {"sessionKey": key, "message": message})
            await quiet(client, key)
    return str(made["session"]["key"])
