"""A small MCP server over stdio, made with the SDK: what there is of each product.

`demo.py` starts it. For another client: `python warehouse_server.py`.
"""

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

STOCK = {"tea": 40, "coffee": 0, "cake": 7, "water": 250}

server = MCPServer("warehouse", instructions="What there is, and where.")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def stock(product: str) -> int:
    """How many of a product are in stock."""
    return STOCK[product]


if __name__ == "__main__":
    server.run()
