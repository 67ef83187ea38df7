"""`chat`: a conversation at the terminal."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawmode.commands.options import (
    AgentApproveOption,
    ConfigOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    ToolsOption,
    find_gateway,
    gather,
    load_setup,
    told_errors,
)

if TYPE_CHECKING:
    from clawmode.app.setup import Options
    from clawmode.rpc.presence import RunningGateway
    from clawmode.terminal.chat_command import ChatCommand
    from clawmode.terminal.chat_remote_command import RemoteChatCommand


def chat(
    session: Annotated[
        str, typer.Option(help="The conversation: a key, or an id. Default: the main one.")
    ] = "",
    agent_id: Annotated[
        str, typer.Option("--agent", help="Which agent. Default: the default one.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="provider/model, from now on, as /model in the chat.")
    ] = "",
    local: Annotated[
        bool, typer.Option("--local", help="Run it in this process, even if a gateway runs.")
    ] = False,
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: AgentApproveOption = None,
    state: StateOption = None,
) -> None:
    """Talk with an agent. What it says and does appears above the line that you type.

    Exit status: 0 when you leave, 1 failed, 2 usage.
    """
    with told_errors():
        from clawmode.exceptions import ConfigurationError
        from clawmode.sessions.keys import InvalidSession
        from clawmode.terminal.chat_screen import check_terminal

        check_terminal()
        options = gather(tools, config, mcp_config, policy, approve, state)
        given = {"session": session, "agent_id": agent_id, "model": model, "approve": approve}
        place = None if local else find_gateway(options)
        command = _embedded(options, given) if place is None else _remote(place, options, given)
        try:
            command.run()
        except InvalidSession as error:
            raise ConfigurationError(str(error)) from None


def _embedded(options: "Options", given: dict[str, Any]) -> "ChatCommand":
    from clawmode.terminal.chat_command import ChatCommand

    return ChatCommand(setup=load_setup(options, "agent"), **given)


def _remote(
    place: "RunningGateway", options: "Options", given: dict[str, Any]
) -> "RemoteChatCommand":
    from clawmode.app.setup import state_folder
    from clawmode.terminal.chat_remote_command import RemoteChatCommand
    from clawmode.terminal.remote_turn import check_options

    check_options(options, place)
    return RemoteChatCommand(state=state_folder(options.state), **given)
