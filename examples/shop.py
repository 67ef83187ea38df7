"""The tools of a small shop, as a Python developer writes them.

README and docs use them: `--tools examples.shop:TOOLS`, in the folder of the repository.
"""

import anyio

from clawmode import tool

PRICES = {"tea": 3.2, "coffee": 4.5, "cake": 5.1, "water": 1.0}


@tool(effect="read")
async def list_products() -> list[str]:
    """List the names of all products."""
    return list(PRICES)


@tool(effect="read")
async def get_price(product: str) -> float:
    """Look up what a product costs. The register is slow."""
    await anyio.sleep(0.1)
    return PRICES[product]


@tool(effect="write")
async def place_order(product: str, amount: int) -> dict[str, str | int]:
    """Order a product. Costs money."""
    return {"ordered": product, "amount": amount}


TOOLS = [list_products, get_price, place_order]
