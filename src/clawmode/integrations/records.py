"""Calls of `exec` and `wait` as a framework sees them: outcomes, questions, and what is kept.

Frameworks end a run when a person has to be asked, and later make the same tool call again from
its start, maybe in another process. Therefore every call has a sealed record in the session, under
the framework's id of the call, and so has every program that has asked something.
"""

import base64
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from clawmode.code_mode.results import compact, take_images
from clawmode.code_mode.shelves import ShelfLimits
from clawmode.code_mode.state import SealedShelf
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import ConfigurationError
from clawmode.types import JsonObject, JsonValue

MAX_RECORDS = ShelfLimits(rows=512, size=8 << 20)
MAX_RESULT = 256 << 10
"""Bytes of a result that is kept for a call that is entered again after it has ended."""

NOT_KEPT = "This call has ended before, and its result was too large to be kept: run it again."
LOST = (
    "This call was made before, and its program has not waited yet: the process that ran it has "
    "died, or still runs it. The program was not started again, because its calls may have taken "
    "effect: look before you repeat them."
)
GONE = (
    "The program that asked is not here: it was kept in the memory of a process that has ended, or "
    "in another store or session. It was not started again, because its calls may have taken "
    "effect: look before you repeat them."
)
BAD_ANSWERS = (
    'The answers to nested calls must be {"answers": {"<id of a question>": true, false or a text '
    "that says why not}}, or the questions as they were asked."
)
FULL = (
    "Too many programs of this session wait for people. Answer or deny their questions, wait until "
    "the programs expire, or give each user a session."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to a question.

    Attributes:
        reason: Why the call was denied, for the program that made it.
        always: Whether later calls of the same tool in the session are allowed too.
    """

    allow: bool
    reason: str = ""
    always: bool = False


Answers: TypeAlias = Answer | Mapping[str, Answer] | None
"""One answer to all questions of the last pause, or answers by the ids of the questions."""


def read_answers(given: object) -> Answer | dict[str, Answer]:
    """Reads what a front end has sent together with an approval.

    `{"answers": {"<id>": True, "<id>": "why not"}}` answers questions one by one: a text denies.
    `{"questions": [...]}`, as it was sent to the front end, approves exactly these questions.
    Everything else approves all that the program asks now.

    Raises:
        ConfigurationError: The answers cannot be read.
    """
    if not isinstance(given, Mapping):
        return Answer(True)
    answers = given.get("answers")
    if answers is None and "questions" not in given:
        return Answer(True)
    if answers is None:
        shown = given["questions"] if isinstance(given["questions"], list) else [None]
        answers = {each.get("id") if isinstance(each, Mapping) else None: True for each in shown}
    read: dict[str, Answer] = {}
    for name, each in answers.items() if isinstance(answers, Mapping) else [(None, None)]:
        if not isinstance(name, str) or not isinstance(each, bool | str):
            raise ConfigurationError(BAD_ANSWERS)
        read[name] = Answer(each is True, each if isinstance(each, str) else "")
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedQuestion:
    """A nested call that waits for the approval of a person.

    Attributes:
        id: The id of the nested call, by which it is answered.
        tool: The name of the tool that would be called.
        input: The exact input of the call.
    """

    id: str
    tool: str
    title: str
    description: str
    input: JsonObject

    def to_json(self) -> JsonObject:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call of `exec` or `wait` came to.

    Attributes:
        result: The JSON of the result, with its images.
        asked: The nested calls that wait for a person. If there are any, the framework should ask,
            and then make the same call again.
    """

    result: dict[str, JsonValue]
    asked: tuple[NestedQuestion, ...] = ()

    @property
    def text(self) -> str:
        """The result as a model reads it."""
        return compact(take_images(self.result)[0])

    @property
    def images(self) -> list[tuple[str, str]]:
        """The images of the result: base64, and the type."""
        return take_images(self.result)[1]

    @property
    def run_id(self) -> str:
        """The id of the program, while it waits."""
        return str(self.result.get("runId", ""))

    def questions(self) -> JsonObject:
        """Returns the program and its questions as JSON, for the framework's front end."""
        return {"runId": self.run_id, "questions": [each.to_json() for each in self.asked]}

    def ids(self) -> JsonObject:
        """Returns the ids of the questions, from which `read_answers` approves exactly these."""
        return {"questions": [{"id": each.id} for each in self.asked]}


def failed(code: str, error: str) -> Outcome:
    """Returns the outcome of a call that we could not make."""
    return Outcome({"status": "failed", "code": code, "error": error})


@dataclass(slots=True)
class CallRecord:
    """A call of `exec` or `wait`.

    Attributes:
        program: The id of the program; empty until the program has waited for the first time.
        result: The result, if the call has ended or waits for people.
    """

    program: str = ""
    result: dict[str, JsonValue] | None = None
    at: float = 0.0

    def to_bytes(self) -> bytes:
        self.at = time.time()
        encoded = json.dumps(asdict(self)).encode()
        if len(encoded) > MAX_RESULT:
            result = failed("internal_error", NOT_KEPT).result
            encoded = CallRecord(self.program, result).to_bytes()
        return encoded


@dataclass(slots=True)
class KeptRecord:
    """What an adapter keeps with a call of `exec` or `wait`, in base64."""

    result: str
    at: float = field(default_factory=time.time)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(slots=True)
class Pause:
    """Questions that a program has put at once, and the call that was under way."""

    call: str
    asked: list[NestedQuestion]


@dataclass(slots=True)
class ProgramRecord:
    """A program that has asked people.

    Attributes:
        pauses: All pauses of the program, oldest first.
        is_open: True while the last of them waits for answers.
        at: When the record was written.
    """

    pauses: list[Pause] = field(default_factory=list[Pause])
    is_open: bool = False
    at: float = 0.0

    def to_bytes(self) -> bytes:
        self.at = time.time()
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, kept: bytes) -> "ProgramRecord":
        given = json.loads(kept)
        pauses = [
            Pause(each["call"], [NestedQuestion(**asked) for asked in each["asked"]])
            for each in given["pauses"]
        ]
        return cls(pauses, given["is_open"])


def call_key(name: str, arguments: object, call_id: str) -> str:
    """Returns the key of a call's record.

    A model may use an id again for another program, so the arguments belong to the key.
    """
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True, default=str).encode())
    return json.dumps([call_id, name, digest.hexdigest()])


def unique_id(call_id: str, made: Iterable[str | None]) -> str:
    """Returns an id for the last call of a conversation with an id, as some models use ids again.

    Args:
        call_id: The id.
        made: The ids of all calls of the conversation, with this one.
    """
    number = sum(each == call_id for each in made)
    return call_id if number < 2 else f"{call_id}#{number}"


class Records:
    """The records of one session, sealed in its store.

    Args:
        store: Where the session is kept.
        context: The session.
        ttl: Seconds after which a program that waits has expired.
    """

    def __init__(self, store: SnapshotStore, context: RunContext, ttl: float) -> None:
        self._ttl = ttl
        self._shelf = SealedShelf(store, context, "framework", MAX_RECORDS, session=True)

    async def call(self, key: str) -> CallRecord | None:
        """Returns the record of a call; None if the call is new."""
        kept = (await self._shelf.read()).get(key)
        return None if kept is None else CallRecord(**json.loads(kept))

    async def calls(self, name: str, call_id: str) -> dict[str, CallRecord]:
        """Returns the records of calls with an id, whatever their arguments were."""
        kept = (await self._shelf.read()).items()
        start = json.dumps([call_id, name])[:-1] + ","
        return {key: CallRecord(**json.loads(row)) for key, row in kept if key.startswith(start)}

    async def program(self, program: str) -> ProgramRecord:
        """Returns the record of a program, an empty one if the program has asked nothing."""
        kept = (await self._shelf.read()).get(program)
        return ProgramRecord() if kept is None else ProgramRecord.read(kept)

    async def kept(self, key: str) -> bytes | None:
        """Returns what an adapter has kept; None if there is nothing."""
        kept = (await self._shelf.read()).get(f"kept {key}")
        return None if kept is None else base64.b64decode(json.loads(kept)["result"])

    async def keep(self, key: str, data: bytes) -> None:
        """Keeps what an adapter gives."""
        await self.write({f"kept {key}": KeptRecord(base64.b64encode(data).decode())})

    async def write(
        self, rows: Mapping[str, CallRecord | ProgramRecord | KeptRecord | None]
    ) -> None:
        """Writes records, or deletes those that are None.

        Raises:
            ConfigurationError: Records of programs that wait for people fill the session.
        """
        encoded = {key: None if row is None else row.to_bytes() for key, row in rows.items()}
        if await self._shelf.write(encoded):
            return
        dropped = self._dispensable(await self._shelf.read())
        if not await self._shelf.write({**dict.fromkeys(dropped), **encoded}):
            raise ConfigurationError(FULL)

    def _dispensable(self, shelf: Mapping[str, bytes]) -> list[str]:
        """Returns the keys of rows to drop: expired programs, and the oldest half of the calls.

        Calls of programs that wait for people stay: without its record, a call that is made again
        would start its program again. The oldest others will hardly be made again.
        """
        rows = {key: json.loads(row) for key, row in shelf.items()}
        expired = time.time() - self._ttl
        programs = {key for key, row in rows.items() if "pauses" in row}
        old = {key for key in programs if rows[key].get("at", 0) < expired}
        waiting = {key for key in programs - old if rows[key]["is_open"]}
        calls = {key for key in rows.keys() - programs if rows[key]["result"] is not None}
        needed = {key for key in calls if rows[key].get("program") in waiting}
        needed |= {f"kept {json.loads(key)[0]}" for key in needed}
        by_age = sorted(calls - needed, key=lambda key: rows[key]["at"])
        return [*old, *by_age[: len(by_age) // 2 + 1]]
