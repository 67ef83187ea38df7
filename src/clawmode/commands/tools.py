"""The commands `tools list`, `tools search` and `tools show`."""

from typing import Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    TOOLS,
    JsonOption,
    Options,
    command,
    fail,
    load_setup,
    new_app,
    say,
    takes,
    with_all_tools,
)

app = new_app("Look at the tools that programs can call.")


@app.command("list")
@takes(*TOOLS)
def list_tools(
    options: Options,
    everything: Annotated[
        bool, typer.Option("--all", help="Include denied tools, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tools that programs can call."""
    with command() as out:
        from clawmode.terminal.listings import list_all, print_entries

        setup = with_all_tools(load_setup(options))
        entries = list_all(setup.tools, setup.policy)
        shown = [entry for entry in entries if everything or "denied" not in entry]
        if as_json:
            out.json({"tools": shown})
        elif shown:
            print_entries(out, shown, denied=everything)
        else:
            hint = "no MCP server has any" if setup.servers else "add some with --tools"
            none = f"there are no tools: {hint}"
            say("all tools are denied: see --all for the reasons" if entries else none)


@app.command("search")
@takes(*TOOLS)
def search_tools(
    options: Options,
    query: Annotated[str, typer.Argument(help="The words to search for.")],
    limit: Annotated[int | None, typer.Option(min=1, help="The most tools to list.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search tools as programs do, best match first."""
    with command() as out:
        from clawmode.terminal.listings import print_found, search

        setup = with_all_tools(load_setup(options))
        wanted = min(limit or setup.config.search_default_limit, setup.config.max_search_limit)
        found = search(setup.catalog(), query, wanted)
        if as_json:
            out.json(found)
        else:
            print_found(out, found)


@app.command("show")
@takes(*TOOLS)
def show_tool(
    options: Options,
    reference: Annotated[
        str, typer.Argument(metavar="ID", help="An id, or a name that only one tool has.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what a tool does, how to call it, and its JSON Schema.

    Exit status: 0 shown, 1 there is no such tool, 2 wrong usage.
    """
    with command() as out:
        from clawmode.exceptions import ToolLookupError
        from clawmode.terminal.listings import page_of, print_page, why_not

        setup = with_all_tools(load_setup(options))
        try:
            page = page_of(setup.catalog(), reference)
        except ToolLookupError as error:
            fail(why_not(reference, error, setup.tools, setup.policy), FAILED)
        if as_json:
            out.json(page)
        else:
            print_page(out, page)
