"""The settings of code mode: the fields of `tools.codeMode`, their defaults and ranges."""

import warnings
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from clawmode.exceptions import ClawmodeWarning, ConfigWarning
from clawmode.records import (
    Items,
)
from clawmode.sandbox.protocol import LANGUAGES, Language, Limits
from clawmode.sections import (
    Section,
    option,
    read,
    repair,
)
from clawmode.types import JsonValue

Runtime: TypeAlias = Literal["quickjs-wasi"]
Mode: TypeAlias = Literal["only"]
StateLevel: TypeAlias = Literal["run", "session"]
Isolation: TypeAlias = Literal["shared", "process-per-cell"]
Durability: TypeAlias = Literal["parked", "effects"]
Dialect: TypeAlias = Literal["standard", "codex"]

PATH = "tools.codeMode"

SUSPENDED_IN_MEMORY = 64
SUSPENDED_DURABLE = 10_000


class SearchLimits(Section):
    """How many results a search has. `search_default_limit` is never over `max_search_limit`."""

    max_search_limit: int = option("The maximum number of results.", 50, low=1, high=50)
    search_default_limit: int = option(
        "The number of results of a search that sets no limit.", 8, low=1, high=50
    )

    @field_validator("search_default_limit")
    @classmethod
    def _compare(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("max_search_limit", value)
        if value > most:
            raise PydanticCustomError("less_than_equal", "over the maximum", {"le": most})
        return value

    @model_validator(mode="after")
    def _compare_default(self) -> Self:
        return self._lower_default()

    def _lower_default(self) -> Self:
        # Without a warning, because nobody asked for the default. The model is frozen.
        limit = min(self.search_default_limit, self.max_search_limit)
        object.__setattr__(self, "search_default_limit", limit)
        return self

    def over(self, inherited: Section) -> Self:
        return super().over(inherited)._lower_default()


def _in_order(languages: tuple[Language, ...]) -> tuple[Language, ...]:
    return tuple(language for language in LANGUAGES if language in languages)


QUEUED_CALLS = 128
"""Calls of a cell that the host queues, in addition to those that run."""

QUEUED_PER_CALL = 64
"""Calls that may be queued for each call that may run, if that is more than `QUEUED_CALLS`. The
host never gets them all: the others wait in the heap of the cell, and are parked with it."""


class CodeModeConfig(SearchLimits):
    """The settings of code mode.

    A number out of its range is clamped, with a `ClawmodeWarning`.

    Raises:
        ConfigurationError: A value has the wrong type, or is not one of the allowed values.
    """

    SHORT: ClassVar = (bool, "enabled")
    RESETS: ClassVar = True

    enabled: bool = option(
        "Whether runs of an agent use code mode. A `CodeMode` object ignores it.", False
    )
    runtime: Runtime = option("The JavaScript engine.", "quickjs-wasi")
    mode: Mode = option("Which tools the model sees besides `exec` and `wait`: none.", "only")
    languages: Annotated[Items[Language], Field(min_length=1), AfterValidator(_in_order)] = option(
        "The languages of programs.",
        LANGUAGES,
        expected='a list with at least one of "javascript" or "typescript"',
    )
    timeout_ms: int = option(
        "The time limit of one `exec` or `wait`.", 10_000, low=100, high=60_000
    )
    memory_limit_bytes: int = option(
        "The memory of a program.", 64 << 20, low=1 << 20, high=1 << 30
    )
    max_output_bytes: int = option(
        "The size of a result and its output.", 64 << 10, low=1024, high=10 << 20
    )
    max_snapshot_bytes: int = option(
        "The size of a parked program.", 10 << 20, low=1024, high=256 << 20
    )
    max_pending_tool_calls: int = option(
        "The number of concurrent calls of a program.", 16, low=1, high=128
    )
    snapshot_ttl_seconds: int = option(
        "How long a parked program is kept.", 900, low=1, high=86_400
    )
    durability: Durability = option(
        'Which programs survive the death of their process: those that wait ("parked"), or also '
        'those that run, as they were before their last call with effects ("effects"). By default '
        '"effects" in a store that machines share.',
        "parked",
    )
    state: StateLevel = option(
        "How long programs find what earlier ones stored with `store`: the run, or the session.",
        "run",
    )
    index_max_chars: int = option(
        "The length of the tool index in the prompt; 0 disables the index.",
        4000,
        low=0,
        high=100_000,
    )
    dialect: Dialect = option(
        'How models call the two tools. "codex" adds the forms that Codex and its models use.',
        "standard",
    )
    isolation: Isolation = option(
        'Whether programs use the same worker processes one after the other ("shared"), or each '
        'program gets a process that ends with it ("process-per-cell").',
        "shared",
    )
    max_suspended_runs: int = option(
        "The number of parked programs; by default 64 in memory and 10000 in a durable store.",
        0,
        low=1,
        high=1_000_000,
    )

    @model_validator(mode="wrap")
    @classmethod
    def _construct(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if info.context is not None or not isinstance(value, dict):
            return handler(value)  # `read` collects the errors and warnings of a file
        if unknown := value.keys() - cls.model_fields.keys():
            raise TypeError(f"CodeModeConfig has no field {', '.join(map(repr, sorted(unknown)))}")
        made, issues = repair(cls, value, "CodeModeConfig", handler)
        if issues.errors:
            raise issues.errors[0]
        for warning in issues.warnings:
            # The caller of `BaseModel.__init__`; the validator in between has no frame.
            warnings.warn(str(warning), ClawmodeWarning, stacklevel=3)
        return made

    def replace(self, **changes: Any) -> "CodeModeConfig":
        """Returns a copy with changes, which are checked as the arguments of the constructor."""
        if not (changes or self.model_fields_set):
            return self
        return CodeModeConfig(
            **{name: getattr(self, name) for name in self.model_fields_set} | changes
        )

    def clamped(self, *, durable: bool = False, fleet: bool = False) -> "CodeModeConfig":
        """Returns a copy with the defaults that depend on the store, where nothing was set.

        Args:
            durable: True if parked programs outlive the process, so that more may be parked.
            fleet: True if machines share the store.
        """
        unset = SUSPENDED_DURABLE if durable else SUSPENDED_IN_MEMORY
        update: dict[str, Any] = {"max_suspended_runs": self.max_suspended_runs or unset}
        if fleet and "durability" not in self.model_fields_set:
            update["durability"] = "effects"
        return self.model_copy(update=update)

    @property
    def patience(self) -> float:
        """Seconds for which a question stays open: a "nobody answered" must reach the program."""
        return self.snapshot_ttl_seconds - min(self.snapshot_ttl_seconds / 10, 30.0)

    def limits(self) -> Limits:
        """Returns the resources that one program may use."""
        running = self.max_pending_tool_calls
        return Limits(
            memory_bytes=self.memory_limit_bytes,
            max_calls=running + QUEUED_CALLS,
            snapshot_bytes=self.max_snapshot_bytes,
            max_waiting=max(QUEUED_PER_CALL * running - QUEUED_CALLS, 0),
        )

    @classmethod
    def from_json(
        cls, value: JsonValue, *, path: str = PATH
    ) -> "tuple[CodeModeConfig, list[ConfigWarning]]":
        """Reads a `codeMode` value; pass `{}` if it is absent.

        Raises:
            ConfigurationError: A value has the wrong type, or is not one of the allowed values.
        """
        found = read(cls, value, path)
        return found.unwrap(), found.warnings
