"""The commands `state check`, `state migrate` and `state copy`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clawmode.commands.options import (
    FAILED,
    JsonOption,
    Options,
    command,
    load_setup,
    new_app,
)
from clawmode.text import escape
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.code_mode.nodes import NodeInfo

app = new_app("Look at, upgrade and fill the store of waiting programs.")


@app.command("check")
def check_state(options: Options, as_json: JsonOption = False) -> None:
    """Show where programs that wait are kept, and who uses them.

    Shows the number of programs, the version of the tables, and the living nodes.

    Exit status: 0 everything fits; 1 the store cannot be used, or its counters are wrong.
    """
    with command() as out:
        import anyio

        from clawmode.app.backends import backend_of, closing

        setup = load_setup(options)

        async def look() -> bool:
            async with closing(backend_of(setup)) as backend:
                nodes = await backend.nodes.living()
                found = await backend.cells.report()
            wrong = found.counted not in (None, found.parked)
            if as_json:
                listed = [_node_json(node) for node in nodes]
                out.json({"place": backend.place, **found._asdict(), "nodes": listed})
                return wrong
            out.say(f"{backend.place}: version {found.version} of the tables")
            running = "too many to count" if found.running is None else f"{found.running} run"
            out.say(f"programs: {found.parked} wait, {running}")
            if wrong:
                out.say(f"but {found.counted} were found: some programs may park right now")
            for node in nodes:
                state = ", draining" if node.draining else ""
                heard = f"last heard {node.silent:.1f} s ago{state}"
                out.say(escape(f"node {node.id} {node.name} (clawmode {node.build}), {heard}"))
            return wrong

        wrong = anyio.run(look)
    raise typer.Exit(FAILED if wrong else 0)


def _node_json(node: "NodeInfo") -> JsonObject:
    """Returns a node as JSON. Keys and images are ids, of which the beginning is enough."""
    return {
        **node._asdict(),
        "keys": [key.hex()[:16] for key in node.keys],
        "images": [image.hex()[:16] for image in node.images],
    }


@app.command("migrate")
def migrate_state(
    options: Options,
    force: Annotated[
        bool, typer.Option("--force", help="Upgrade even if living nodes could not go on.")
    ] = False,
) -> None:
    """Create or upgrade the tables of the database."""
    with command() as out:
        from clawmode.app.backends import store_in_database

        store = store_in_database(load_setup(options))
        try:
            version = store.migrate(force=force)
        finally:
            store.close()
        out.say(f"{store!r} has version {version} of the schema")


@app.command("copy")
def copy_state(
    options: Options,
    target: Annotated[
        Literal["database", "folder"], typer.Argument(help="Where the programs are to go.")
    ],
) -> None:
    """Move programs that wait to the database, or to the folder.

    A program leaves its old place as soon as its new place has it, so that it cannot run twice.
    Programs that a process has right now stay where they are. Repeat the command after an
    interruption.

    Exit status: 0 all were moved; 1 some were in use and stay.
    """
    with command() as out:
        import anyio

        from clawmode.app.backends import Moved, closing, database_of, folder_of, move_programs

        setup = load_setup(options)

        async def move() -> Moved:
            async with (
                closing(database_of(setup)) as database,
                closing(folder_of(setup)) as folder,
            ):
                pair = (folder, database) if target == "database" else (database, folder)
                return await move_programs(*(backend.cells for backend in pair))

        done = anyio.run(move)
        out.say(f"moved {done.programs} programs, and what {done.shelves} runs or sessions stored")
        for name in done.busy:
            out.say(f"{name} stays: a process has it")
    raise typer.Exit(FAILED if done.busy else 0)
