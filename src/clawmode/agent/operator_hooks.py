"""Operator hooks: which scripts run for which event, and what their answers mean.

    agent:bootstrap     {agentId, sessionKey, runId, workspace, files} -> {add, remove}
    command:<name>      {command, …} -> {messages}
    session:start, session:end, message:received, message:sent, gateway:startup, gateway:shutdown

Scripts run one after the other, in the order of the configuration. A script that fails, hangs or
returns an invalid answer is logged by name and ignored: scripts observe and add, and guard nothing.
"""

import difflib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clawmode.agent.operator_scripts import Program, PythonFile, Script, ScriptError
from clawmode.agent.prompt import MAX_FILE_CHARS, MAX_TOTAL_CHARS, BootstrapFile
from clawmode.config.operations import InternalHook, InternalHooks
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.records import join
from clawmode.text import shorten, show, without_surrogates
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.hooks")

BOOTSTRAP = "agent:bootstrap"
EVENTS = (
    BOOTSTRAP,
    *("session:start", "session:end", "message:received", "message:sent"),
    *("gateway:startup", "gateway:shutdown"),
)
COMMANDS = ("command:new", "command:reset", "command:stop")
"""Examples, to suggest for a misspelt event: the name of any command may follow the colon."""

KINDS = ("agent", "command", "session", "message", "gateway")
_COMMAND = re.compile(r"command:[a-z0-9][a-z0-9_-]*")

MAX_FILES = 100
MAX_NAME = 200
MAX_MESSAGES = 20
MAX_MESSAGE_CHARS = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a hook.

    Attributes:
        hook: The name of the hook in the configuration.
    """

    hook: str
    value: JsonObject


@dataclass(frozen=True, slots=True)
class _Hook:
    name: str
    events: frozenset[str]
    script: Script

    async def ask(self, event: str, payload: JsonObject) -> Answer | None:
        try:
            value = await self.script.ask({**payload, "event": event})
        except ScriptError as error:
            _log_error(self.name, event, str(error))
            return None
        return Answer(self.name, value) if value else None


class OperatorHooks:
    """The operator's scripts.

    Args:
        section: The section `hooks.internal` of the configuration.
        folder: The folder that relative paths start from, and that programs run in.
    """

    def __init__(self, section: InternalHooks, folder: Path) -> None:
        entries = section.entries.items() if section.enabled else ()
        self._hooks = [_read(name, entry, folder) for name, entry in entries if entry.enabled]

    def has(self, event: str) -> bool:
        """True if a hook runs for the event."""
        return any(True for _ in self._of(event))

    def _of(self, event: str) -> Iterator[_Hook]:
        """Returns the hooks that name the event, or its kind, such as `session`."""
        names = {event, event.partition(":")[0]}
        return (hook for hook in self._hooks if not names.isdisjoint(hook.events))

    async def run(self, event: str, payload: JsonObject) -> list[Answer]:
        """Runs the hooks of an event; returns the answers that are not empty."""
        answers = [await hook.ask(event, payload) for hook in self._of(event)]
        return [answer for answer in answers if answer is not None]

    async def bootstrap(
        self,
        files: Sequence[BootstrapFile],
        about: JsonObject,
        workspace: Path,
        *,
        max_chars: int = MAX_FILE_CHARS,
    ) -> list[BootstrapFile]:
        """Runs the hooks of `agent:bootstrap`; returns the files that the prompt is built from.

        Each hook sees the changes of those before it.

        Args:
            files: The bootstrap files of the workspace.
            about: `agentId`, `sessionKey`, `runId`.
            workspace: The workspace.
            max_chars: The largest size of one file.
        """
        made = list(files)
        for hook in self._of(BOOTSTRAP):
            shown: list[JsonValue] = [{"name": it.name, "text": it.text} for it in made]
            payload: JsonObject = {**about, "workspace": str(workspace), "files": shown}
            answer = await hook.ask(BOOTSTRAP, payload)
            if answer is None:
                continue
            changes = _Changes.read(answer.value)
            if changes is None:
                wanted = '{"add": [{"name", "text"}], "remove": [name]}'
                _log_error(hook.name, BOOTSTRAP, f"the answer must be {wanted}")
                continue
            made, left_out = changes.apply(made, max_chars)
            if left_out:
                _log_error(hook.name, BOOTSTRAP, f"no room for {', '.join(left_out)[:500]}")
        return made

    async def command(self, name: str, about: JsonObject) -> list[str]:
        """Runs the hooks of a slash command; returns their messages to the person."""
        event = f"command:{name}"
        said: list[str] = []
        for answer in await self.run(event, {**about, "command": name}):
            messages = _messages(answer.value)
            if messages is None:
                _log_error(answer.hook, event, 'the answer must be {"messages": [text]}')
            else:
                said += messages
        return said


def _log_error(name: str, event: str, reason: str) -> None:
    logger.error("hook %s of %s: %s", name, event, reason)


# ---- Reading the configuration ----


def hook_faults(
    section: InternalHooks, folder: Path
) -> Iterator[ConfigurationError | ConfigWarning]:
    """Yields errors and warnings about the hooks of a configuration, without running them.

    Args:
        section: The section `hooks.internal` of the configuration.
        folder: The folder that relative paths start from.
    """
    entries = section.entries.items() if section.enabled else ()
    for name, entry in entries:
        if not entry.enabled:
            continue
        path = join("hooks.internal.entries", name)
        yield from _unknown_events(path, entry.events)
        if entry.file and not (file := _file_of(entry, folder)).is_file():
            text = f"{path}.file: there is no file {show(str(file))}"
            yield ConfigurationError(text, path=f"{path}.file", expected="a Python file")
        elif entry.command:
            program = os.path.expanduser(entry.command[0])
            if shutil.which(str(folder / program) if "/" in program else program) is None:
                text = "this program is not installed here, or not on PATH"
                yield ConfigWarning(f"{path}.command[0]", text)


def _file_of(entry: InternalHook, folder: Path) -> Path:
    return folder / os.path.expanduser(entry.file or "")


def _read(name: str, entry: InternalHook, folder: Path) -> _Hook:
    for warning in _unknown_events(name, entry.events):
        logger.warning("hook %s", warning)
    seconds = entry.timeout_ms / 1000
    if entry.command:
        script: Script = Program(argv=entry.command, folder=folder, seconds=seconds, env=entry.env)
    else:
        script = PythonFile(name, _file_of(entry, folder), seconds)
    return _Hook(name, frozenset(entry.events), script)


def _unknown_events(path: str, events: Iterable[str]) -> Iterator[ConfigWarning]:
    known = (*EVENTS, *COMMANDS, *KINDS)
    for index, event in enumerate(events):
        if event in known or _COMMAND.fullmatch(event):
            continue
        (near,) = difflib.get_close_matches(event.lower()[:100], known, n=1, cutoff=0.0)
        text = (
            f"there is no event {show(event[:80])}, so the hook never runs for it; the nearest "
            f"known one is {near}"
        )
        yield ConfigWarning(f"{path}.events[{index}]", text)


# ---- Reading answers ----


@dataclass(frozen=True, slots=True)
class _Changes:
    """A hook's changes to the bootstrap files."""

    add: dict[str, str]
    remove: frozenset[str]

    @classmethod
    def read(cls, answer: JsonObject) -> "_Changes | None":
        """Parses an answer; returns None if any part of it is invalid."""
        add, remove = answer.get("add", []), answer.get("remove", [])
        if not isinstance(add, list) or not isinstance(remove, list):
            return None
        removed = frozenset(name for name in remove if isinstance(name, str))
        if answer.keys() - {"add", "remove"} or not all(isinstance(it, str) for it in remove):
            return None
        added: dict[str, str] = {}
        for item in add:
            if not isinstance(item, dict) or item.keys() != {"name", "text"}:
                return None
            name, text = item["name"], item["text"]
            if not isinstance(name, str) or not isinstance(text, str):
                return None
            # The name becomes a heading of the prompt: a line break could start another part.
            if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
                return None
            added[name] = without_surrogates(text)
        return cls(added, removed)

    def apply(
        self, files: Iterable[BootstrapFile], max_chars: int
    ) -> tuple[list[BootstrapFile], list[str]]:
        """Returns the changed files, and the names for which there was no room.

        A file that is added under the name of another one replaces it.
        """
        made = {file.name: file for file in files if file.name not in self.remove}
        left_out: list[str] = []
        for name, text in self.add.items():
            others = [file for file in made.values() if file.name != name]
            room = MAX_TOTAL_CHARS - sum(len(file.text) for file in others)
            if room <= 0 or len(others) >= MAX_FILES:
                left_out.append(name)
                continue
            kept = text[: min(max_chars, room)]
            made[name] = BootstrapFile(name, kept, len(text) - len(kept))
        return list(made.values()), left_out


def _messages(answer: JsonObject) -> list[str] | None:
    messages = answer.get("messages")
    if answer.keys() != {"messages"} or not isinstance(messages, list):
        return None
    texts = [text for text in messages if isinstance(text, str)]
    if len(texts) != len(messages):
        return None
    kept = [shorten(without_surrogates(text), MAX_MESSAGE_CHARS) for text in texts if text.strip()]
    return kept[:MAX_MESSAGES]
