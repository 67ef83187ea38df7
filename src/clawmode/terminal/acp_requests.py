"""What an ACP client sends: prompts, MCP servers, and parameters that are invalid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acp import schema
from acp.exceptions import RequestError

from clawmode.app.mcp_clients import OWN_NAME
from clawmode.exceptions import message_of
from clawmode.messages import IMAGE_TYPES, BadMessage, Image
from clawmode.terminal.acp_wire import INVALID_PARAMS
from clawmode.text import one_line
from clawmode.types import JsonObject

MAX_PROBLEMS = 10

Server = schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio
Block = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


def describe(error: ValueError) -> str:
    """Returns what is wrong with the parameters of a request, on one line."""
    details: list[Any] = getattr(error, "errors", list)()
    found = [f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in details[:MAX_PROBLEMS]]
    return one_line("; ".join(found) or message_of(error), 1_000)


def entries_of(servers: Sequence[Server], folder: Path) -> JsonObject:
    """Returns the MCP servers of a client in the format of configuration files."""
    entries: JsonObject = {}
    for server in servers:
        if isinstance(server, schema.McpServerStdio):
            if server.name == OWN_NAME and "mcp" in server.args:
                continue  # `clawmode setup` added it: programs in programs are of no use
            entries[server.name] = {
                "command": server.command,
                "args": [*server.args],
                "env": {each.name: each.value for each in server.env},
                "cwd": str(folder),
            }
        elif isinstance(server, schema.HttpMcpServer | schema.SseMcpServer):
            headers: JsonObject = {each.name: each.value for each in server.headers}
            entries[server.name] = {"type": server.type, "url": server.url, "headers": headers}
    return entries


def read_prompt(blocks: Sequence[Block]) -> tuple[str, list[Image]]:
    """Returns the text and the images of a prompt.

    Raises:
        RequestError: A block cannot be given to a model.
    """
    texts: list[str] = []
    images: list[Image] = []
    for number, block in enumerate(blocks):
        where = f"prompt[{number}]"
        if isinstance(block, schema.TextContentBlock):
            texts.append(block.text)
        elif isinstance(block, schema.ImageContentBlock):
            images.append(_image(block.data, block.mime_type, where))
        elif isinstance(block, schema.ResourceContentBlock):
            texts.append(f"[{block.title or block.name}]({block.uri})")
        elif isinstance(block, schema.EmbeddedResourceContentBlock):
            found = block.resource
            if isinstance(found, schema.TextResourceContents):
                texts.append(f'\n<resource uri="{found.uri}">\n{found.text}\n</resource>\n')
            elif found.mime_type in IMAGE_TYPES:
                images.append(_image(found.blob, found.mime_type, where))
            else:
                texts.append(f"[{found.uri}] (a file of the type {found.mime_type or 'unknown'})")
        else:
            raise RequestError(INVALID_PARAMS, f"{where}: audio is not supported")
    return "".join(texts), images


def _image(data: str, kind: str, where: str) -> Image:
    try:
        return Image.parse(data, kind)
    except BadMessage as error:
        raise RequestError(INVALID_PARAMS, f"{where}: {error}") from None
