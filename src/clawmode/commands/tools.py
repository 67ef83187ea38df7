"""The commands `tools list`, `tools search` and `tools show`."""

from typing import Annotated

import typer

from clawmode.commands.options import (
    FAILED,
    ConfigOption,
    JsonOption,
    McpConfigOption,
    PolicyOption,
    ToolsOption,
    command,
    fail,
    gather,
    load_setup,
    new_app,
    say,
    with_all_tools,
)

app = new_app("Look at the tools that programs can call.")


@app.command("list")
def list_tools(
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include denied tools, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tools that programs can call."""
    with command() as out:
        from clawmode.terminal.listings import list_all, print_entries

        setup = with_all_tools(load_setup(gather(tools, config, mcp_config, policy)))
        entries = list_all(setup.tools, setup.policy)
        shown = [entry for entry in entries if everything or "denied" not in entry]
        if as_json:
            out.json({"tools": shown})
        elif shown:
            print_entries(out, shown, denied=everything)
        else:
            none = "there are no tools: add some with --tools"
            say("all tools are denied: see --all for the reasons" if entries else none)


@app.command("search")
def search_tools(
    query: Annotated[str, typer.Argument(help="The words to search for.")],
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most tools to list.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search tools as programs do, best match first."""
    with command() as out:
        from clawmode.terminal.listings import print_found, search

        setup = with_all_tools(load_setup(gather(tools, config, mcp_config, policy)))
        wanted = min(limit or setup.config.search_default_limit, setup.config.max_search_limit)
        found = search(setup.catalog(), query, wanted)
        if as_json:
            out.json(found)
        else:
            print_found(out, found)


@app.command("show")
def show_tool(
    reference: Annotated[
        str, typer.Argument(metavar="ID", help="An id, or a name that only one tool has.")
    ],
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a tool does, how to call it, and its JSON Schema.

    Exit status: 0 shown, 1 there is no such tool, 2 wrong usage.
    """
    with command() as out:
        from clawmode.exceptions import ToolLookupError
        from clawmode.terminal.listings import page_of, print_page, why_not

        setup = with_all_tools(load_setup(gather(tools, config, mcp_config, policy)))
        try:
            page = page_of(setup.catalog(), reference)
        except ToolLookupError as error:
            fail(why_not(reference, error, setup.tools, setup.policy), FAILED)
        if as_json:
            out.json(page)
        else:
            print_page(out, page)
