"""The notes themselves: kept in a file, or in memory if there is none."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Note:
    number: int
    text: str
    tags: list[str]


@dataclass
class Notebook:
    file: Path | None = None
    notes: list[Note] = field(default_factory=list[Note])

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            lines = self.file.read_text("utf-8").splitlines()
            self.notes = [Note(**json.loads(line)) for line in lines]

    def add(self, text: str, tags: list[str]) -> Note:
        note = Note(len(self.notes) + 1, text, sorted(set(tags)))
        self.notes.append(note)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(asdict(note), ensure_ascii=False) + "\n")
        return note

    def find(self, words: str, tag: str) -> list[Note]:
        wanted = words.casefold().split()
        return [
            note
            for note in self.notes
            if (not tag or tag in note.tags)
            and all(word in note.text.casefold() for word in wanted)
        ]
