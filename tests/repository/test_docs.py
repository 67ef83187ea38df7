"""Checks the content, links and form of the pages. `test_docs_commands` runs their blocks."""

import re
import socket
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn

from clawmode.types import ERROR_CODES

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name != "CLAUDE.md"
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.covers("N-17")
@pytest.mark.anyio
async def test_the_web_server_of_the_library_page_answers_requests_with_one_pool() -> None:
    (program,) = (each for each in blocks("docs/guide/library.md", "python") if "starlette" in each)
    defined: dict[str, Any] = {"__name__": "web"}
    exec(program, defined)
    app = defined["app"]
    async with app.router.lifespan_context(app) as state:

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": state}, receive, send)

        transport = httpx2.ASGITransport(app=serve)
        async with httpx2.AsyncClient(transport=transport, base_url="http://web") as client:
            answers = [
                await client.post("/run", content=text, headers={"x-user": user})
                for user, text in [("ann", "return tools.whoami()"), ("bob", "throw 1")]
            ]
        assert [answer.status_code for answer in answers] == [200, 422]
        assert answers[0].json() == {"value": "ann"}
        assert answers[1].json()["code"] == "internal_error"


@pytest.mark.covers("N-17")
@pytest.mark.anyio
async def test_the_web_server_of_the_library_page_serves_many_requests_at_once() -> None:
    (program,) = (each for each in blocks("docs/guide/library.md", "python") if "starlette" in each)
    defined: dict[str, Any] = {"__name__": "web"}
    exec(program, defined)
    server = uvicorn.Server(uvicorn.Config(defined["app"], log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/run"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            answers: dict[str, Any] = {}

            async def ask(client: httpx2.AsyncClient, user: str) -> None:
                source = "return await tools.whoami()"
                answer = await client.post(url, content=source, headers={"x-user": user})
                answers[user] = answer.json()

            async with (
                httpx2.AsyncClient(timeout=60, trust_env=False) as client,
                anyio.create_task_group() as users,
            ):
                for number in range(40):
                    users.start_soon(ask, client, f"user-{number}")
            server.should_exit = True
    assert answers == {f"user-{number}": {"value": f"user-{number}"} for number in range(40)}


def test_every_code_of_a_failed_call_is_documented() -> None:
    made = re.compile(r'(?:ToolFailure|BadRequest|refuse)\((?:\w[\w.]*, )?"(\w+)"')
    source = ROOT / "src" / "clawmode"
    codes = {
        code
        for path in (
            *source.glob("code_mode/*.py"),
            *source.glob("tools/*.py"),
            *source.glob("catalog/*.py"),
        )
        for code in made.findall(path.read_text("utf-8"))
    }
    assert len(codes) > 8
    text = (ROOT / "docs/guide/programs.md").read_text("utf-8")
    assert sorted(code for code in codes if f"`{code}`" not in text) == []


def test_every_error_code_is_documented() -> None:
    text = (ROOT / "docs/guide/programs.md").read_text("utf-8")
    text += (ROOT / "docs/reference/config.md").read_text("utf-8")
    assert [code for code in ERROR_CODES if f"`{code}`" not in text] == []


def prose_of(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The fragments of links to the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", prose_of(page))
    broken = [
        (link, anchor)
        for link, anchor in links
        if not (target := page.parent / link if link else page).exists()
        or (anchor and anchor not in anchors_of(target))
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_ends_with_an_empty_line(page: Path) -> None:
    """Without it, the next line would become a row of the table."""
    assert re.findall(r"^\|.*\n(?!\|)(.+)", prose_of(page), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    """A table row, an image, and a line without a space to break at may be longer."""
    assert [
        line
        for line in prose_of(page).splitlines()
        if len(line) > 100
        and not line.startswith(("|", "!["))
        and " " in re.sub(r"`[^`]*`|\S+$", "", line.lstrip(" -*0123456789."))
    ] == []


def test_every_page_of_the_docs_is_in_the_index_and_links_to_the_glossary() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text("utf-8")
    pages = [page for page in docs.rglob("*.md") if page.name not in ("README.md", "glossary.md")]
    assert len(pages) > 20
    assert [page for page in pages if f"({page.relative_to(docs)})" not in index] == []
    assert [page for page in pages if "](../glossary.md)" not in prose_of(page)] == []


def test_every_module_opens_with_what_it_owns() -> None:
    for path in (ROOT / "src" / "clawmode").rglob("*.py"):
        assert path.read_text("utf-8").startswith(('"""', 'r"""')), path


def test_the_architecture_names_every_folder_and_only_paths_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    source = ROOT / "src" / "clawmode"
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    assert {folder for folder in folders if f"`{folder}/" not in page} == set()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.\w+)?)`", page))
    assert len(named) > 20
    roots = (ROOT, source)
    assert [
        name
        for name in sorted(named)
        if not any((root / name).exists() or (root / f"{name}.py").exists() for root in roots)
    ] == []


def test_the_starting_points_of_the_architecture_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = page.split("## Where do I add")[1].splitlines()[4:]
    assert len(rows) >= 8
    for row in rows:
        subject, start = row.split("|")[1:3]
        files = re.findall(r"`([\w/]+/[\w.]*)`", start)
        assert files, subject
        places = [ROOT / "src" / "clawmode" / name for name in files]
        text = "".join(place.read_text("utf-8") for place in places if place.is_file())
        assert all(place.exists() for place in places), subject
        for name in re.findall(r"`(\w+)`", start):
            assert re.search(rf"^ *(class|def|async def) {name}\b", text, re.MULTILINE), name


@pytest.mark.covers("N-46")
def test_there_is_a_quick_subset_of_the_tests_and_the_way_to_run_one() -> None:
    """`test_docs_commands` types what the page shows."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert "`make test-quick`" in page
    assert re.search(r"^\.venv/bin/pytest tests/[\w/]+\.py::test_\w+$", page, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    (quick,) = re.findall(r"^QUICK := (.*)$", makefile, re.MULTILINE)
    assert len(quick.split()) > 10
    assert [path for path in quick.split() if not (ROOT / path).exists()] == []
    assert "pyrefly check --summary=none" in makefile  # no count of what is not shown
