"""What the configuration says about a request: who runs, with which model, where, how long."""

import os
from pathlib import Path

import anyio

from clawmode.agent import bootstrap
from clawmode.agent.compaction import CompactionSettings
from clawmode.agent.loop import LoopLimits
from clawmode.agent.models import ModelPool
from clawmode.agent.prompt import Ingredients
from clawmode.agent.replies import Shape
from clawmode.agent.requests import AgentRequest, RunSettings, Streaming
from clawmode.agent.skills import SkillLoader, Skills
from clawmode.agent.timeouts import RunClock, idle_window
from clawmode.config import resolve as settings
from clawmode.config.resolve import AgentSettings, Configuration
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import Model
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session
from clawmode.sessions.workspaces import forget_sandbox, sandbox_root, workspace_of
from clawmode.tools.policy import Policy

SKILLS = "skills"
"""The folder of skills, in a workspace and in the state."""


class ConfigResolver:
    """Looks requests up in a configuration.

    Args:
        configuration: Read without errors.
        models: Finds them by name.
        state: The folder of the process's state.
        narrowed: Rules beside those of the configuration.
        skill_folders: Where plugins have skills.
        workspace: Where agents work that have no workspace in the configuration; by default each
            has a folder of its own in the state folder.
    """

    def __init__(
        self,
        configuration: Configuration,
        models: ModelPool,
        state: Path,
        narrowed: Policy | None = None,
        skill_folders: tuple[Path, ...] = (),
        workspace: Path | None = None,
    ) -> None:
        self._configuration = configuration
        self._models = models
        self._state = state
        self._narrowed = narrowed or Policy()
        self._skill_folders = skill_folders
        self._default_workspace = workspace
        self._loaders: dict[Path, SkillLoader] = {}

    def change(self, configuration: Configuration) -> None:
        """Another configuration holds for requests from now on; read without errors."""
        self._configuration = configuration
        self._loaders.clear()

    async def skills(self, agent_id: str) -> Skills:
        """What an agent can be told how to do, in its own workspace.

        Raises:
            ConfigurationError: There is no such agent.
        """
        agent = settings.agent(self._configuration, agent_id)
        workspace = self._own_workspace(agent)
        return await anyio.to_thread.run_sync(self._loader(workspace).load)

    def agent_of(self, request: AgentRequest) -> str:
        """The id of the agent that is meant: named, or that of the session's key."""
        if request.agent_id:
            return settings.agent(self._configuration, request.agent_id).id
        head, _, rest = request.session_key.partition(":")
        if head == "agent" and ":" in rest:
            return settings.agent(self._configuration, rest.partition(":")[0]).id
        return settings.default_agent(self._configuration)

    async def settings(self, request: AgentRequest, session: Session) -> RunSettings:
        """Everything that a run has to know."""
        agent = settings.agent(self._configuration, session.agent_id)
        await self._models.prepare()
        models = self._choose(request, session, agent)
        main = session.key == session_key(None, agent.id)
        sandboxed = agent.is_sandboxed(main_session=main)
        workspace = self._workspace(agent, session, sandboxed)
        seconds = float(agent.timeout_seconds)
        if request.timeout_seconds is not None:
            seconds = min(request.timeout_seconds, seconds)
        clock = RunClock(
            seconds=seconds,
            is_set=agent.timeout_is_set or request.timeout_seconds is not None,
            cron=request.trigger == "cron",
            cron_seconds=request.cron_seconds,
        )

        def idle(model: Model) -> float:
            return idle_window(model.limits, clock)

        return RunSettings(
            agent_id=agent.id,
            models=models,
            policy=self._policy(request, agent, models[0], sandboxed),
            code_mode=agent.code_mode,
            tool_search=agent.tool_search,
            workspace=workspace,
            ingredients=await anyio.to_thread.run_sync(
                self._ingredients, request, agent, workspace
            ),
            shape=Shape(
                verbose=request.verbose or agent.verbose, reasoning=agent.reasoning == "on"
            ),
            streaming=Streaming(
                blocks=agent.block_streaming,
                at=agent.block_streaming_break,
                reasoning=agent.reasoning,
            ),
            compaction=self._compaction(agent),
            thinking=request.thinking or agent.thinking,
            trace=agent.trace if request.trace is None else request.trace,
            timeout_seconds=seconds,
            lock_seconds=self._configuration.session.write_lock.acquire_timeout_ms / 1000,
            limits=LoopLimits(max_turns=agent.max_turns, idle_seconds=idle),
        )

    def forget(self, session: Session) -> None:
        """Takes away what was made for a session that is deleted."""
        try:
            agent = settings.agent(self._configuration, session.agent_id)
        except ConfigurationError:
            return  # it was made for an agent that there is not any more
        root = agent.sandbox_workspace_root or None
        forget_sandbox(self._state, session.id, root)

    def _choose(
        self, request: AgentRequest, session: Session, agent: AgentSettings
    ) -> tuple[Model, ...]:
        """The model that was asked for, else the session's, else the agent's; and fallbacks."""
        first = request.model or session.model or agent.model
        if not first:
            raise ConfigurationError(
                "no model is configured: set agents.defaults.model to `provider/model`, "
                "or name one for this run",
                path="agents.defaults.model",
                expected="provider/model",
            )
        names = dict.fromkeys((first, *agent.fallbacks))
        return tuple(self._models.find(name) for name in names)

    def _workspace(self, agent: AgentSettings, session: Session, sandboxed: bool) -> Path:
        if not sandboxed:
            return self._own_workspace(agent)
        root = agent.sandbox_workspace_root or None
        return sandbox_root(self._state, agent.id, session.id, configured=root)

    def _own_workspace(self, agent: AgentSettings) -> Path:
        if self._default_workspace is not None and not agent.workspace:
            return self._default_workspace
        return workspace_of(self._state, agent.id, agent.workspace or None)

    def _ingredients(
        self, request: AgentRequest, agent: AgentSettings, workspace: Path
    ) -> Ingredients:
        """What the prompt is made of. Reads files: a thread's work."""
        return Ingredients(
            workspace=workspace,
            skills=self._loader(workspace).load(),
            files=bootstrap.load(
                workspace,
                bootstrap.FILES if agent.bootstrap_files is None else agent.bootstrap_files,
                max_chars=agent.bootstrap_chars,
            ),
            extra=request.system,
        )

    def _compaction(self, agent: AgentSettings) -> CompactionSettings:
        own = agent.compaction_model
        return CompactionSettings(
            enabled=agent.compaction,
            reserve_tokens=agent.reserve_tokens,
            keep_tokens=agent.keep_recent_tokens,
            context_tokens=agent.context_tokens,
            model=None if own is None else self._models.find(own),
        )

    def _loader(self, workspace: Path) -> SkillLoader:
        """What finds the skills of a workspace; kept, because it remembers them."""
        if workspace not in self._loaders:
            configured = self._configuration.skills
            extra = (Path(os.path.expanduser(each)) for each in configured.load.extra_dirs)
            entries = configured.entries
            self._loaders[workspace] = SkillLoader(
                # The operator's first: a model can write into its workspace.
                (self._state / SKILLS, *extra, *self._skill_folders, workspace / SKILLS),
                frozenset(name for name, each in entries.items() if not each.enabled),
                {name: each.env for name, each in entries.items()},
                frozenset({workspace / SKILLS}),
            )
        return self._loaders[workspace]

    def _policy(
        self, request: AgentRequest, agent: AgentSettings, model: Model, sandboxed: bool
    ) -> Policy:
        configured = settings.policy(
            self._configuration,
            agent.id,
            provider=model.provider,
            model=model.name,
            sender=_sender_keys(request),
            sandboxed=sandboxed,
        )
        return Policy(configured.layers + self._narrowed.layers)


def _sender_keys(request: AgentRequest) -> tuple[str, ...]:
    """What `toolsBySender` may call whoever asked, the most telling first."""
    sender = request.sender
    by_name = [f"{kind}:{sender}" for kind in ("id", "e164", "username", "name")]
    if ":" not in sender and sender != "*":
        by_name.insert(0, sender)  # else whoever chooses their name would choose their rights
    came_by = request.origin or request.channel
    channel = [f"channel:{came_by}"] if came_by else []
    return (*(by_name if sender else ()), *channel)
