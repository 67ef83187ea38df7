"""The commands `chat` and `acp`: conversations at the terminal, and in an editor."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawmode.commands.agent import make_request
from clawmode.commands.options import (
    TOOLS,
    AgentOption,
    ModelOption,
    Options,
    SessionOption,
    exit_on_error,
    find_gateway,
    load_setup,
    takes,
)
from clawmode.exceptions import require

if TYPE_CHECKING:
    from clawmode.terminal.acp_wire import AcpWire
    from clawmode.terminal.chat import Partner

_wires: "list[AcpWire]" = []


@takes(*TOOLS, "agent_approve", "state")
def chat(
    options: Options,
    session: SessionOption = "",
    agent_id: AgentOption = "",
    model: Annotated[
        str, typer.Option(help="Use this provider/model from now on, like /model in the chat.")
    ] = "",
    local: Annotated[
        bool, typer.Option("--local", help="Run the agent in this process, even if a gateway runs.")
    ] = False,
) -> None:
    """Talk with an agent. Its replies and calls appear above your input line.

    Exit status: 0 when you leave, 1 failed, 2 wrong usage.
    """
    with exit_on_error():
        from clawmode.terminal.chat_screen import check_terminal

        check_terminal()
        running = None if local else find_gateway(options)
        partner: Partner
        # Each imports one of the two: the modules of the other would only cost time.
        if running is None:
            from clawmode.terminal.chat_local import LocalPartner

            partner = LocalPartner(load_setup(options, "agent"))
        else:
            from clawmode.terminal.chat_remote import RemotePartner

            partner = RemotePartner(options, running)
        from clawmode.app.setup import state_folder
        from clawmode.terminal.chat import TerminalChat

        chat = TerminalChat(
            partner=partner, state=state_folder(options.state), approve=options.approve
        )
        chat.run(make_request(session, agent_id=agent_id, model=model))


# ---- Editors ----


def _claim_stdio(given: dict[str, Any]) -> None:
    """From now on, stdout has messages of the protocol only, whatever imports and tools print."""
    require("acp", "acp")
    from clawmode.terminal.acp_wire import AcpWire

    _wires.append(AcpWire.claim())


@takes(*TOOLS, "agent_approve", "state", first=_claim_stdio)
def acp(options: Options, agent_id: AgentOption = "", model: ModelOption = "") -> None:
    """Serve an agent to an editor, by the Agent Client Protocol.

    The editor starts this command and talks to it over stdin and stdout. Each session works in
    the folder that the editor names, with the clawmode.json5 of that folder if you have agreed to
    it. Everything that is not part of the protocol goes to stderr.
    """
    with exit_on_error():
        from clawmode.terminal.acp_agent import serve

        serve(options, _wires.pop(), agent_id=agent_id, model=model)
