"""`chat`: a conversation at the terminal."""

from typing import Annotated

import typer

from clawmode.commands.common import (
    ApproveOption,
    ConfigOption,
    McpConfigOption,
    PolicyOption,
    StateOption,
    ToolsOption,
    gather,
    load_setup,
    told_errors,
)


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
    tools: ToolsOption = None,
    config: ConfigOption = None,
    mcp_config: McpConfigOption = None,
    policy: PolicyOption = None,
    approve: ApproveOption = "ask",
    state: StateOption = None,
) -> None:
    """Talk with an agent. What it says and does appears above the line that you type.

    Exit status: 0 when you leave, 1 failed, 2 usage.
    """
    with told_errors():
        from clawmode.agent.session_keys import InvalidSession
        from clawmode.chat.command import ChatCommand, check_terminal
        from clawmode.exceptions import ConfigurationError

        check_terminal()
        options = gather(tools, config, mcp_config, policy, approve, state)
        command = ChatCommand(
            setup=load_setup(options),
            session=session,
            agent_id=agent_id,
            model=model,
            approve=approve,
        )
        try:
            command.run()
        except InvalidSession as error:
            raise ConfigurationError(str(error)) from None
