"""An MCP server with the company's documents: `python -m bench.model_tasks.library STATE`.

It declares the types of its results, and has a resource for each document. STATE is used as by the
tracker.
"""

import random
import sys
import threading
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, TypeAdapter

PAGE = 10
TOPICS = ("returns", "safety", "travel", "hiring", "pricing", "brand", "security", "shipping")
changing = threading.Lock()
server = MCPServer("library", instructions="Documents of the company.")


class Heading(BaseModel):
    id: str
    title: str
    year: int


class Document(Heading):
    text: str
    tags: list[str]


class Page(BaseModel):
    documents: list[Heading]
    page: int
    pages: int


DOCUMENTS = TypeAdapter(dict[str, Document])


def make_documents() -> dict[str, Document]:
    """Returns the documents at the beginning."""
    chance = random.Random(13)
    made: dict[str, Document] = {}
    for number in range(1, 41):
        topic, days = TOPICS[number % len(TOPICS)], chance.randrange(7, 60)
        made[f"D{number:02}"] = Document(
            id=f"D{number:02}",
            title=f"Rules for {topic}, part {1 + number // len(TOPICS)}",
            year=chance.randrange(2018, 2027),
            text=f"For {topic}, the deadline is {days} days. " + "Details follow. " * 20,
            tags=[topic],
        )
    return made


def load() -> dict[str, Document]:
    return DOCUMENTS.validate_json(Path(sys.argv[1]).read_bytes())


def find(id: str) -> Document:
    documents = load()
    if id not in documents:
        raise ValueError(f"unknown document {id}")
    return documents[id]


def add_tag(id: str, tag: str) -> Document:
    """Adds a tag to a document, and replaces the file, which other calls may read."""
    with changing:
        find(id)
        documents = load()
        documents[id].tags.append(tag)
        new = Path(f"{sys.argv[1]}.new")
        new.write_bytes(DOCUMENTS.dump_json(documents))
        new.replace(sys.argv[1])
    return documents[id]


@server.tool()
def list_documents(page: int = 1) -> Page:
    """List documents, 10 on a page; pages start at 1."""
    rows = [*load().values()]
    shown = [
        Heading(id=it.id, title=it.title, year=it.year) for it in rows[PAGE * (page - 1) :][:PAGE]
    ]
    return Page(documents=shown, page=page, pages=-(-len(rows) // PAGE))


@server.tool()
def get_document(id: str) -> Document:
    """Return one document with its text."""
    return find(id)


@server.tool()
def tag_document(id: str, tag: str) -> Document:
    """Add a tag to a document."""
    return add_tag(id, tag)


@server.tool()
def archive_document(id: str) -> Document:
    """Move a document to the archive."""
    return add_tag(id, "archived")


@server.resource("document://{id}")
def read_document(id: str) -> str:
    """The text of a document."""
    return find(id).text


if __name__ == "__main__":
    server.run("stdio")
