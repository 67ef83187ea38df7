"""Tools for the tests of the control page: `shop:TOOLS` in the folder of a gateway."""

from pathlib import Path

SHOP = '''
import anyio
from clawmode import tool
from clawmode.tools.tool import InputRequest, ToolContext

@tool(effect="read")
async def price(item: str) -> int:
    """The price of an item."""
    return len(item)

@tool(effect="read")
async def slow(seconds: float = 60, label: str = "") -> str:
    """Takes its time."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()
    return "done"

@tool(effect="write")
async def order(item: str, count: int = 1) -> str:
    """Order an item."""
    with open("ordered.txt", "a") as file:
        file.write(f"{item[:60]!r} {count}\\n")
    return f"ordered {count} {item}"

@tool(effect="read")
async def address(context: ToolContext) -> str:
    """Ask a person for an address."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name", "minLength": 2},
            "parcels": {"type": "integer", "title": "Parcels", "default": 1},
            "express": {"type": "boolean", "title": "Express"},
            "country": {"type": "string", "title": "Country", "enum": ["de", "fr"]},
        },
        "required": ["name", "country"],
    }
    answer = await context.ask(InputRequest(message="Where to?", schema=schema))
    with open("ordered.txt", "a") as file:
        file.write(f"{answer}\\n")
    return str(answer)

TOOLS = [price, slow, order, address]
'''

TOOLS = ("--tools", "shop:TOOLS")


def stock(folder: Path) -> None:
    """Writes the module of the tools."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")


def ordered(folder: Path) -> list[str]:
    """What was ordered so far."""
    file = folder / "ordered.txt"
    return file.read_text("utf-8").splitlines() if file.exists() else []
