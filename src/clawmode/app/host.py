"""Opens everything that a `Setup` names: plugins, hooks, channels, models, tools, the runtime.

`clawmode agent`, the chat and the gateway all call `open_host`, so all have the same tools,
plugins, hooks and channels.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.agent.hooks import AgentHooks, MessageEvent
from clawmode.agent.models import ModelPool
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.app.backends import Backend, open_backend
from clawmode.app.own_tools import OwnTools
from clawmode.app.protected_paths import protected_paths
from clawmode.app.secrets import known_secrets, withheld
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.messaging.channel import Channel, Receive
from clawmode.messaging.inbox import Inbox
from clawmode.messaging.outbox import Outbox
from clawmode.messaging.reply_delivery import Delivery, OnChat
from clawmode.plugins.loader import Plugins
from clawmode.plugins.setup import open_plugins
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import SessionStore
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.messaging.webhook import WebhookChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An open runtime of agents, with everything that it uses.

    Attributes:
        webhooks: Channels that receive messages over HTTP; the gateway's server serves them.
    """

    setup: Setup
    backend: Backend
    runtime: AgentRuntime
    resolver: ConfigResolver
    own: OwnTools
    models: ModelPool
    plugins: Plugins
    operator: OperatorHooks
    outbox: Outbox
    inbox: Inbox
    webhooks: "tuple[WebhookChannel, ...]"

    @property
    def hooks(self) -> Hooks:
        return self.runtime.hooks


@asynccontextmanager
async def open_host(
    setup: Setup,
    approvals: Approvals,
    models: ModelPool | None = None,
    *,
    channels: Iterable[Channel] = (),
    on_chat: OnChat = lambda event: None,
    workspace: Path | None = None,
    pool: Pool | None = None,
) -> AsyncIterator[Host]:
    """Opens everything that a setup names, and closes it again at the end of the block.

    Args:
        setup: The settings.
        approvals: Decides about calls that need approval.
        models: The models, if the caller has them already; default: those of the configuration.
        channels: Channels in addition to those of the configuration.
        on_chat: Receives the events for chat clients.
        workspace: The workspace of agents for which the configuration names none.
        pool: Workers that several hosts share; by default the host has its own.

    Raises:
        ConfigurationError: The configuration names something that cannot be opened.
    """
    configuration = setup.configuration
    async with AsyncExitStack() as opened:
        extensions = _extend(setup, opened)
        hooks, operator = extensions.plugins.hooks, extensions.operator
        # The channels need the inbox, and the inbox needs the channels (through the runtime).
        inboxes: list[Inbox] = []
        webhooks = await _open_webhooks(setup, lambda message: inboxes[0].receive(message), opened)
        outbox = Outbox({it.name: it for it in (*webhooks, *channels)}, AgentHooks(hooks))
        models = await opened.enter_async_context(models or ModelPool(configuration))
        guards = withheld(setup), protected_paths(setup)
        own = OwnTools(configuration, setup.state, hooks, outbox, *guards)
        await opened.enter_async_context(own)
        skills = tuple(extensions.plugins.skill_folders)
        narrowed = setup.narrowed
        resolver = ConfigResolver(configuration, models, setup.state, narrowed, skills, workspace)
        backend = await opened.enter_async_context(open_backend(setup))
        runtime = await _open_runtime(
            setup, approvals, resolver, extensions, own, opened, pool, backend
        )
        await opened.enter_async_context(Delivery(runtime, outbox, on_chat))
        inbox = Inbox(
            runtime=runtime,
            outbox=outbox,
            queue=configuration.messages.queue,
            find_model=models.find,
            default_agent=settings.default_agent(configuration),
            operator=operator,
        )
        inboxes.append(await opened.enter_async_context(inbox))
        if webhooks:  # without them the user sits at a terminal, which shows the question itself
            approvals.on_question = inbox.tell_question
        yield Host(
            setup=setup,
            backend=backend,
            runtime=runtime,
            resolver=resolver,
            own=own,
            models=models,
            plugins=extensions.plugins,
            operator=operator,
            outbox=outbox,
            inbox=inbox,
            webhooks=webhooks,
        )


@dataclass(frozen=True, slots=True)
class _Extensions:
    plugins: Plugins
    operator: OperatorHooks


def _extend(setup: Setup, opened: AsyncExitStack) -> _Extensions:
    """Loads the plugins, and connects the operator's hooks to theirs."""
    plugins = open_plugins(setup.configuration, setup.state)
    opened.callback(plugins.unload)
    operator = OperatorHooks(setup.configuration.hooks.internal, setup.folder)
    if operator.has("message:sent"):

        async def run_operator_hooks(event: MessageEvent) -> None:
            await operator.run("message:sent", event.to_json())

        plugins.hooks.on("message_sent", run_operator_hooks, name="scripts of the operator")
    return _Extensions(plugins, operator)


async def _open_webhooks(
    setup: Setup, receive: Receive, opened: AsyncExitStack
) -> "tuple[WebhookChannel, ...]":
    entries = setup.configuration.channels.items()
    if not entries:
        return ()
    from clawmode.messaging.webhook import WebhookChannel, check_secrets  # imports Starlette

    made = [WebhookChannel(name, entry, receive) for name, entry in entries if entry.enabled]
    for error in check_secrets(setup.configuration.channels):
        raise error
    for channel in made:
        await opened.enter_async_context(channel)
    return tuple(made)


async def _open_runtime(
    setup: Setup,
    approvals: Approvals,
    resolver: ConfigResolver,
    extensions: _Extensions,
    own: OwnTools,
    opened: AsyncExitStack,
    pool: Pool | None,
    backend: Backend,
) -> AgentRuntime:
    configuration, plugins = setup.configuration, extensions.plugins
    servers = None
    if setup.servers:
        from clawmode.app.servers import open_servers  # the MCP SDK takes a second to import

        asks = approvals.takes_input
        servers = await opened.enter_async_context(open_servers(setup, asks=asks))
    runtime = AgentRuntime(
        resolver=resolver,
        sessions=SessionStore(setup.sessions_folder),
        state=setup.state,
        store=backend.cells,
        tools=setup.tools,
        own=own.for_run,
        clean_up=own.end_session,
        plugin_tools=plugins.tools,
        servers=servers,
        hooks=plugins.hooks,
        operator=extensions.operator,
        approvals=approvals,
        namespaces=plugins.namespaces,
        pool=pool,
        max_concurrent=settings.max_concurrent(configuration),
        secrets=known_secrets(setup),
    )
    return await opened.enter_async_context(runtime)
