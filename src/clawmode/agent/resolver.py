"""What the configuration says about a request: the agent, its models, workspace and limits."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.prompt import BOOTSTRAP_FILES, Ingredients, load_bootstrap_files
from clawmode.agent.requests import (
    AgentRequest,
    CompactionSettings,
    LoopLimits,
    RunSettings,
    Shape,
    Streaming,
)
from clawmode.agent.skills import SkillLoader, Skills
from clawmode.config import resolve as settings
from clawmode.config.resolve import AgentSettings, Configuration
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import Model, ModelLimits
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session
from clawmode.sessions.workspaces import forget_sandbox, sandbox_root, workspace_of
from clawmode.tools.policy import Policy

SKILLS = "skills"
"""The name of the folder with skills, in a workspace and in the state folder."""

IDLE_SECONDS = 120.0
CRON_IDLE_SECONDS = 60.0
"""For a remote model in a cron run with its own time limit: it leaves time for fallbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClock:
    """The time limits of a run.

    Attributes:
        seconds: The time limit of the whole run.
        is_set: Whether the limit was set for the agent or the run; if not, it is the default.
        cron: Whether a schedule started the run.
        cron_seconds: The time limit of the schedule.
    """

    seconds: float
    is_set: bool = False
    cron: bool = False
    cron_seconds: float | None = None


def idle_window(limits: ModelLimits, clock: RunClock) -> float:
    """Returns how many seconds a model may be silent before its request is aborted."""
    if limits.timeout_seconds is not None:
        window = limits.timeout_seconds
    elif clock.cron_seconds is not None:
        remote = min(clock.cron_seconds, CRON_IDLE_SECONDS)
        window = clock.cron_seconds if limits.local else remote
    elif clock.cron and limits.local and not clock.is_set:
        window = math.inf
    else:
        window = IDLE_SECONDS
    return min(window, clock.seconds)


class ConfigResolver:
    """Resolves requests by a configuration.

    Args:
        configuration: A configuration without errors.
        models: Finds models by name.
        state: The state folder.
        narrowed: Rules in addition to those of the configuration.
        skill_folders: The folders in which plugins have skills.
        workspace: The workspace of agents that have none in the configuration; by default each
            agent has a folder of its own in the state folder.
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
        """Uses another configuration, without errors, for requests from now on."""
        self._configuration = configuration
        self._loaders.clear()

    async def skills(self, agent_id: str) -> Skills:
        """Returns the skills of an agent in its own workspace.

        Raises:
            ConfigurationError: The configuration has no such agent.
        """
        agent = settings.agent(self._configuration, agent_id)
        workspace = self._own_workspace(agent)
        return await anyio.to_thread.run_sync(self._loader(workspace).load)

    def agent_of(self, request: AgentRequest) -> str:
        # The agent that the request names, else the agent of the session's key.
        if request.agent_id:
            return settings.agent(self._configuration, request.agent_id).id
        head, _, rest = request.session_key.partition(":")
        if head == "agent" and ":" in rest:
            return settings.agent(self._configuration, rest.partition(":")[0]).id
        return settings.default_agent(self._configuration)

    async def settings(self, request: AgentRequest, session: Session) -> RunSettings:
        agent = settings.agent(self._configuration, session.agent_id)
        await self._models.prepare()
        models = self._find_models(request, session, agent)
        main = session.key == session_key(None, agent.id)
        sandboxed = agent.is_sandboxed(main_session=main)
        if sandboxed:
            root = agent.sandbox_workspace_root or None
            workspace = sandbox_root(self._state, agent.id, session.id, configured=root)
        else:
            workspace = self._own_workspace(agent)
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

        summarizer = agent.compaction_model
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
            compaction=CompactionSettings(
                enabled=agent.compaction,
                reserve_tokens=agent.reserve_tokens,
                keep_tokens=agent.keep_recent_tokens,
                context_tokens=agent.context_tokens,
                model=self._models.find(summarizer) if summarizer is not None else None,
            ),
            thinking=request.thinking or agent.thinking,
            trace=agent.trace if request.trace is None else request.trace,
            timeout_seconds=seconds,
            lock_seconds=self._configuration.session.write_lock.acquire_timeout_ms / 1000,
            limits=LoopLimits(max_turns=agent.max_turns, idle_seconds=idle),
        )

    def forget(self, session: Session) -> None:
        try:
            agent = settings.agent(self._configuration, session.agent_id)
        except ConfigurationError:
            return  # the agent was removed from the configuration
        root = agent.sandbox_workspace_root or None
        forget_sandbox(self._state, session.id, root)

    def _find_models(
        self, request: AgentRequest, session: Session, agent: AgentSettings
    ) -> tuple[Model, ...]:
        """Returns the model of the request, else the session's or the agent's, and fallbacks."""
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

    def _own_workspace(self, agent: AgentSettings) -> Path:
        if self._default_workspace is not None and not agent.workspace:
            return self._default_workspace
        return workspace_of(self._state, agent.id, agent.workspace or None)

    def _ingredients(
        self, request: AgentRequest, agent: AgentSettings, workspace: Path
    ) -> Ingredients:
        """Reads the parts of the prompt from files. Blocks: call it in a thread."""
        return Ingredients(
            workspace=workspace,
            skills=self._loader(workspace).load(),
            files=load_bootstrap_files(
                workspace,
                BOOTSTRAP_FILES if agent.bootstrap_files is None else agent.bootstrap_files,
                max_chars=agent.bootstrap_chars,
            ),
            extra=request.system,
        )

    def _loader(self, workspace: Path) -> SkillLoader:
        # One loader for each workspace, because a loader caches the skills that it has read.
        if workspace not in self._loaders:
            configured = self._configuration.skills
            extra = (Path(os.path.expanduser(folder)) for folder in configured.load.extra_dirs)
            entries = configured.entries
            self._loaders[workspace] = SkillLoader(
                # The operator's folders first: a model can write into its workspace.
                (self._state / SKILLS, *extra, *self._skill_folders, workspace / SKILLS),
                frozenset(name for name, entry in entries.items() if not entry.enabled),
                {name: entry.env for name, entry in entries.items()},
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
    """Returns the keys of `toolsBySender` that apply to the sender, the most specific first."""
    sender = request.sender
    by_name = [f"{kind}:{sender}" for kind in ("id", "e164", "username", "name")]
    # A sender who calls themselves `channel:x` or `*` must not choose their rules by that.
    if ":" not in sender and sender != "*":
        by_name.insert(0, sender)
    source = request.origin or request.channel
    channel = [f"channel:{source}"] if source else []
    return (*(by_name if sender else ()), *channel)
