"""The system prompt: its parts, their order, and how many tokens they take.

The prompt stays the same from request to request, so that providers can cache it; what belongs to
one turn only is sent with the turn. Among the parts are the bootstrap files of the workspace, which
tell the agent who it is and for whom it works.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

from clawmode.agent.hooks import PromptAdditions
from clawmode.agent.skills import Skills
from clawmode.messages import Message, Text, UserMessage
from clawmode.models.base import ToolDefinition
from clawmode.types import JsonObject, JsonValue, dataclass

BASE = (
    "You are an agent that works for a person by calling tools. Do what is asked with as few "
    "calls as it takes, say plainly what you did and what you could not do, and do not claim what "
    "no tool has shown you."
)
CHARS_PER_TOKEN = 4


# ---- Bootstrap files ----

BOOTSTRAP_FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "MEMORY.md")
MAX_FILE_CHARS = 20_000
MAX_TOTAL_CHARS = 150_000


@dataclass(frozen=True, slots=True)
class BootstrapFile:
    """A file of the workspace that is part of the prompt.

    Attributes:
        name: The heading in the prompt.
        text: The content, cut if it is too long.
        cut: The number of characters that were cut.
    """

    name: str
    text: str
    cut: int = 0

    def prompt(self) -> str:
        """Returns the file as a part of the prompt."""
        left_out = f"\n[{self.cut} more characters: read the file]" if self.cut else ""
        return f"## {self.name}\n\n{self.text.strip()}{left_out}"


def load_bootstrap_files(
    workspace: Path, names: Iterable[str] = BOOTSTRAP_FILES, *, max_chars: int = MAX_FILE_CHARS
) -> list[BootstrapFile]:
    """Reads those of the named files that exist. Blocks: call it in a thread.

    A name that leads out of the workspace, also by a link, is ignored.
    """
    found: list[BootstrapFile] = []
    room = MAX_TOTAL_CHARS
    for name in dict.fromkeys(names):
        text = _read_inside(workspace, name)
        if text is None or room <= 0:
            continue
        kept = text[: min(max_chars, room)]
        room -= len(kept)
        found.append(BootstrapFile(name, kept, len(text) - len(kept)))
    return found


def _read_inside(workspace: Path, name: str) -> str | None:
    path = workspace / name
    try:
        if not path.resolve(strict=True).is_relative_to(workspace.resolve(strict=True)):
            return None
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(4 * MAX_TOTAL_CHARS).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


# ---- The prompt ----


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the prompt, with a name that says where it comes from."""

    name: str
    text: str

    @property
    def tokens(self) -> int:
        return -(-len(self.text) // CHARS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system prompt in parts.

    Attributes:
        context: Text for this turn only, put before the person's message.
    """

    parts: tuple[Part, ...] = ()
    context: str = ""

    @property
    def text(self) -> str:
        return "\n\n".join(part.text for part in self.parts)

    @property
    def tokens(self) -> int:
        """The estimated number of tokens."""
        return sum(part.tokens for part in self.parts)

    def report(self) -> JsonObject:
        """Returns the size of each part, for previews and the trajectory."""
        parts: list[JsonValue] = [
            {"name": part.name, "chars": len(part.text), "tokens": part.tokens}
            for part in self.parts
        ]
        return {"parts": parts, "tokens": self.tokens, "context": len(self.context)}

    def add_context(self, messages: Sequence[Message]) -> list[Message]:
        """Returns a conversation with `context` before the person's last message.

        The transcript keeps the message without the context.
        """
        spoken = [n for n, message in enumerate(messages) if isinstance(message, UserMessage)]
        if not self.context or not spoken:
            return list(messages)
        last = messages[spoken[-1]]
        assert isinstance(last, UserMessage)
        extended = replace(last, content=(Text(f"{self.context}\n\n"), *last.content))
        return [*messages[: spoken[-1]], extended, *messages[spoken[-1] + 1 :]]

    def trace(self, definitions: Iterable[ToolDefinition], message_count: int) -> JsonObject:
        """Returns the event `context.compiled` of the trajectory: all that the model gets."""
        tools: list[JsonValue] = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in definitions
        ]
        return {
            "systemPrompt": self.text,
            "promptReport": self.report(),
            "tools": tools,
            "toolSchemaBytes": len(json.dumps(tools, separators=(",", ":")).encode()),
            "promptBytes": len(self.text.encode("utf-8", "replace")),
            "messageCount": message_count,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What a prompt is built from.

    Attributes:
        base: The first part.
        directory: Names of tools, if the model is not shown all tools.
        extra: Text that the request adds.
    """

    workspace: Path
    base: str = BASE
    directory: str = ""
    skills: Skills = field(default_factory=Skills)
    files: Sequence[BootstrapFile] = ()
    extra: str = ""


def build(given: Ingredients, additions: PromptAdditions | None = None) -> Prompt:
    """Builds a prompt, with the additions of hooks."""
    added = additions or PromptAdditions()
    parts = [
        Part("hooks: before", added.prepend_system_context),
        Part("base", given.base),
        Part("workspace", f"Your workspace is {given.workspace}."),
        directory := Part("tools", given.directory),
        Part("skills", given.skills.prompt()),
        *(Part(file.name, file.prompt()) for file in given.files),
        Part("run", given.extra.strip()),
        Part("hooks: after", added.append_system_context),
    ]
    if added.system_prompt:
        # A hook that replaces the prompt must not hide the tools that only the directory names.
        parts = [parts[0], Part("hooks: instead", added.system_prompt), directory, parts[-1]]
    return Prompt(tuple(part for part in parts if part.text), added.prepend_context)
