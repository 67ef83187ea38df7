"""The index of tools in the prompt: every name, with signatures or parameters where they fit."""

from collections.abc import Callable, Collection, Mapping

from clawmode.tools.tool import Tool

MORE = "... and {} more, found by tools.search(query)"
NAMES = "More, see tools.describe(name): "


class PromptIndex:
    """The index of some tools.

    Args:
        names: How a program names each tool, by id.
        tools: The tools, by id.
        sign: Returns the signature of a tool on one line.
        max_chars: The most characters of the text.
        used: Ids of tools that the session has used.
        asked: Ids of tools whose calls need approval.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        names: Mapping[str, str],
        sign: Callable[[Tool], str],
        *,
        max_chars: int,
        used: Collection[str],
        asked: Collection[str],
    ) -> None:
        self._tools = tools
        self._names = names
        self._sign = sign
        self._max_chars = max_chars
        self._used = used
        self._asked = asked

    def text(self) -> str:
        """Returns signatures and names, or as many names as fit."""
        names_size = sum(len(name) + 2 for name in self._names.values())
        if names_size - 2 > self._max_chars:  # then the signatures do not fit either
            return self.some_names()
        lines = {id_: self.line(tool) for id_, tool in self._tools.items()}
        if sum(len(line) + 1 for line in lines.values()) - 1 <= self._max_chars:
            return "\n".join(sorted(lines.values()))
        room = self._max_chars - names_size - len(NAMES)
        return self.names_and(lines, room) if room >= 0 else self.some_names()

    def line(self, tool: Tool) -> str:
        """Returns the line of one tool: its signature, and what a caller should know first."""
        return self._sign(tool) + self.marks(tool)

    def outline(self, tool: Tool) -> str:
        """Returns a shorter line: the names of the parameters, without their types."""
        properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
        needed = required if isinstance(required, list) else []
        keys = properties if isinstance(properties, dict) else {}
        given = ", ".join(key if key in needed else f"{key}?" for key in keys)
        name = self._names[tool.id]
        if name.endswith(")"):
            return f"{name[:-1]}, {{{given}}})" + self.marks(tool)
        return (f"{name}({{{given}}})" if given else f"{name}()") + self.marks(tool)

    def marks(self, tool: Tool) -> str:
        """Returns what a caller should know first: the tool writes, a person must approve."""
        return " [write]" * (tool.effect == "write") + " [approval]" * (tool.id in self._asked)

    def names_and(self, lines: Mapping[str, str], room: int) -> str:
        """Returns all names, with parameters or whole lines as far as there is room.

        A model can call a tool whose parameters it knows. So if the parameters of all tools fit,
        they go before the types of some, except for tools that were used.
        """
        outlines = {id_: self.outline(tool) for id_, tool in self._tools.items()}
        used = {id_: line for id_, line in lines.items() if id_ in self._used}
        chosen: dict[str, str] = {}
        spare = room - sum(len(it) - len(self._names[id_]) for id_, it in (outlines | used).items())
        for form in (used, outlines if spare >= 0 else {}, lines, outlines):
            for id_ in self.rank(form):
                extra = len(form[id_]) - len(chosen.get(id_, self._names[id_]))
                if 0 < extra <= room:
                    chosen[id_] = form[id_]
                    room -= extra
        rest = sorted(name for id_, name in self._names.items() if id_ not in chosen)
        more = [NAMES + ", ".join(rest)] if rest else []
        return "\n".join([*sorted(chosen.values()), *more])

    def some_names(self) -> str:
        """Returns as many names as fit, and the number of the others."""
        room = self._max_chars - len(MORE.format(len(self._tools))) - 1
        shown: list[str] = []
        for name in (self._names[id_] for id_ in self.rank(self._names)):
            if len(name) + 2 <= room:
                shown.append(name)
                room -= len(name) + 2
        more = MORE.format(len(self._tools) - len(shown))
        return f"{', '.join(sorted(shown))}\n{more}" if shown else ""

    def rank(self, texts: Mapping[str, str]) -> list[str]:
        """Returns the ids, the most useful tools first; of equal ones those with short texts."""
        return sorted(
            texts,
            key=lambda id_: (
                id_ not in self._used,
                self._tools[id_].source != "openclaw",
                len(texts[id_]),
                id_,
            ),
        )
