"""The command `chat`: a conversation at the terminal."""

from typing import Annotated, Any

import typer

from clawmode.commands.options import (
    AgentApproveOption,
    ConfigOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    ToolsOption,
    exit_on_error,
    find_gateway,
    gather,
    load_setup,
)


def chat(
    session: Annotated[
        str, typer.Option(help="The conversation: a key or an id. Default: the main session.")
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="The agent. Default: the default agent.")
    ] = "",
    model: Annotated[
        str,
        typer.Option(help="Use this provider/model from now on, like /model in the chat."),
    ] = "",
    local: Annotated[
        bool,
        typer.Option("--local", help="Run the agent in this process, even if a gateway runs."),
    ] = False,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
) -> None:
    """Talk with an agent. Its replies and calls appear above your input line.

    Exit status: 0 when you leave, 1 failed, 2 wrong usage.
    """
    with exit_on_error():
        from clawmode.terminal.chat_screen import check_terminal

        check_terminal()
        options = gather(tools, config, mcp_config, policy, approve, state)
        running = None if local else find_gateway(options)
        given: dict[str, Any] = {
            "session": session,
            "agent_id": agent_id,
            "model": model,
            "approve": approve,
        }
        # Each imports one of the two: the modules of the other would only cost time.
        if running is None:
            from clawmode.terminal.chat_local import LocalChat

            setup = load_setup(options, "agent")
            LocalChat(setup=setup, state=setup.state, **given).run()
        else:
            from clawmode.app.setup import state_folder
            from clawmode.terminal.chat_remote_command import RemoteChat
            from clawmode.terminal.remote_turn import check_options

            check_options(options, running)
            RemoteChat(state=state_folder(state), **given).run()
