"""What the configuration says about a request: the agent, its models, workspace and limits."""

import os
from pathlib import Path

import anyio

from clawmode.agent.models import ModelPool
from clawmode.agent.prompt import BOOTSTRAP_FILES, Ingredients, load_bootstrap_files
from clawmode.agent.requests import AgentRequest, ResolvedRequest
from clawmode.agent.skills import SkillLoader, Skills
from clawmode.config import resolve as settings
from clawmode.config.agents import AgentEntry, Configuration
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import Model
from clawmode.sessions.keys import session_key
from clawmode.sessions.store import Session
from clawmode.sessions.workspaces import forget_sandbox, sandbox_root, workspace_of
from clawmode.tools.policy import Policy

SKILLS = "skills"
"""The name of the folder with skills, in a workspace and in the state folder."""
MAX_POLICIES = 1_000


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
        self._models = models
        self._state = state
        self._narrowed = narrowed or Policy()
        self._skill_folders = skill_folders
        self._default_workspace = workspace
        self._loaders: dict[Path, SkillLoader] = {}
        self._agents: dict[str, AgentEntry] = {}
        self._policies: dict[tuple[object, ...], Policy] = {}
        self.change(configuration)

    def change(self, configuration: Configuration) -> None:
        """Uses another configuration, without errors, for requests from now on."""
        self._configuration = configuration
        self._default_agent = settings.default_agent(configuration)
        for kept in (self._loaders, self._agents, self._policies):
            kept.clear()

    async def skills(self, agent_id: str) -> Skills:
        """Returns the skills of an agent in its own workspace.

        Raises:
            ConfigurationError: The configuration has no such agent.
        """
        agent = self._agent(agent_id)
        workspace = self._own_workspace(agent)
        return await anyio.to_thread.run_sync(self._loader(workspace).load)

    def agent_of(self, request: AgentRequest) -> str:
        # The agent that the request names, else the agent of the session's key.
        if request.agent_id:
            return self._agent(request.agent_id).id
        head, _, rest = request.session_key.partition(":")
        if head == "agent" and ":" in rest:
            return self._agent(rest.partition(":")[0]).id
        return self._default_agent

    async def resolve(self, request: AgentRequest, session: Session) -> ResolvedRequest:
        agent = self._agent(session.agent_id)
        own = {"thinking": request.thinking, "verbose": request.verbose}
        if request.trace is not None:
            own["trace"] = "on" if request.trace else "off"
        own = {name: value for name, value in own.items() if value is not None}
        agent = agent.model_copy(update=own) if own else agent
        first = request.model or session.model or agent.model.primary
        if not first:
            raise ConfigurationError(
                "no model is configured: set agents.defaults.model to `provider/model`, "
                "or name one for this run",
                path="agents.defaults.model",
                expected="provider/model",
            )
        names = dict.fromkeys((first, *agent.model.fallbacks))
        await self._models.prepare(filter(None, (*names, agent.compaction.model)))
        models = tuple(self._models.find(name) for name in names)
        main = session.key == session_key(None, agent.id)
        mode = agent.sandbox.mode
        sandboxed = mode == "all" or (mode == "non-main" and not main)
        if sandboxed:
            root = agent.sandbox.workspace_root
            workspace = sandbox_root(self._state, agent.id, session.id, configured=root)
        else:
            workspace = self._own_workspace(agent)
        summarizer = agent.compaction.model
        return ResolvedRequest(
            agent=agent,
            configuration=self._configuration,
            models=models,
            policy=self._policy(request, agent, models[0], sandboxed),
            workspace=workspace,
            ingredients=await anyio.to_thread.run_sync(
                self._ingredients, request, agent, workspace
            ),
            summarizer=None if summarizer is None else self._models.find(summarizer),
        )

    def forget(self, session: Session) -> None:
        try:
            agent = self._agent(session.agent_id)
        except ConfigurationError:
            return  # the agent was removed from the configuration
        forget_sandbox(self._state, session.id, agent.sandbox.workspace_root)

    def _agent(self, agent_id: str) -> AgentEntry:
        # Kept, because to merge the sections of an agent takes longer than the rest.
        if agent_id not in self._agents:
            self._agents[agent_id] = settings.agent(self._configuration, agent_id)
        return self._agents[agent_id]

    def _own_workspace(self, agent: AgentEntry) -> Path:
        if self._default_workspace is not None and not agent.workspace:
            return self._default_workspace
        return workspace_of(self._state, agent.id, agent.workspace)

    def _ingredients(
        self, request: AgentRequest, agent: AgentEntry, workspace: Path
    ) -> Ingredients:
        """Reads the parts of the prompt from files. Blocks: call it in a thread."""
        return Ingredients(
            workspace=workspace,
            skills=self._loader(workspace).load(),
            files=load_bootstrap_files(
                workspace,
                BOOTSTRAP_FILES if agent.bootstrap.files is None else agent.bootstrap.files,
                max_chars=agent.bootstrap.max_chars,
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
        self, request: AgentRequest, agent: AgentEntry, model: Model, sandboxed: bool
    ) -> Policy:
        sender = _sender_keys(request)
        key = (agent.id, model.provider, model.name, sender, sandboxed)
        if key not in self._policies:
            if len(self._policies) >= MAX_POLICIES:  # senders are many, and name themselves
                self._policies.clear()
            configured = settings.policy(
                self._configuration,
                agent.id,
                provider=model.provider,
                model=model.name,
                sender=sender,
                sandboxed=sandboxed,
            )
            self._policies[key] = Policy(configured.layers + self._narrowed.layers)
        return self._policies[key]


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
