"""The system prompt: what goes in, in which order, and how much of the model's room it takes.

Stable from request to request, so that providers can cache it; what is of one turn alone goes with
the turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clawmode.agent import bootstrap
from clawmode.agent.bootstrap import BootstrapFile
from clawmode.agent.hooks import PromptAdditions
from clawmode.agent.skills import Skills
from clawmode.types import JsonObject, JsonValue

BASE = (
    "You are an agent that works for a person by calling tools. Do what is asked with as few "
    "calls as it takes, say plainly what you did and what you could not do, and do not claim what "
    "no tool has shown you."
)
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the prompt, and where it comes from."""

    name: str
    text: str

    @property
    def tokens(self) -> int:
        """About how many."""
        return -(-len(self.text) // CHARS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system prompt, piece by piece.

    Attributes:
        context: Goes before what the person said, for this turn.
    """

    parts: tuple[Part, ...] = ()
    context: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n\n".join(part.text for part in self.parts)

    @property
    def tokens(self) -> int:
        """About how many."""
        return sum(part.tokens for part in self.parts)

    def report(self) -> JsonObject:
        """What went in, for people."""
        parts: list[JsonValue] = [
            {"name": part.name, "chars": len(part.text), "tokens": part.tokens}
            for part in self.parts
        ]
        return {"parts": parts, "tokens": self.tokens, "context": len(self.context)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingredients:
    """What a prompt is made of.

    Attributes:
        base: Said first.
        directory: Tools by name, where the model is not shown all of them.
        extra: Added by whoever asked.
    """

    workspace: Path
    base: str = BASE
    directory: str = ""
    skills: Skills = field(default_factory=Skills)
    files: Sequence[BootstrapFile] = ()
    extra: str = ""


def build(given: Ingredients, additions: PromptAdditions | None = None) -> Prompt:
    """Puts a prompt together, with what hooks add to it."""
    added = additions or PromptAdditions()
    parts = [
        Part("hooks: before", added.prepend_system_context),
        Part("base", given.base),
        Part("workspace", f"Your workspace is {given.workspace}."),
        directory := Part("tools", given.directory),
        Part("skills", given.skills.prompt()),
        *(Part(file.name, bootstrap.prompt([file])) for file in given.files),
        Part("run", given.extra.strip()),
        Part("hooks: after", added.append_system_context),
    ]
    if added.system_prompt:
        # What can be called is no matter of style: a hook that has its own prompt keeps it.
        parts = [parts[0], Part("hooks: instead", added.system_prompt), directory, parts[-1]]
    return Prompt(tuple(part for part in parts if part.text), added.prepend_context)
