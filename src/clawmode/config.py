"""What an operator can set: the page's `tools.codeMode` fields, with its defaults and ranges."""

from dataclasses import dataclass, fields, replace

from clawmode.sandbox.protocol import LANGUAGES, Language

RANGES: dict[str, tuple[int, int]] = {
    "timeout_ms": (100, 60_000),
    "memory_limit_bytes": (1 << 20, 1 << 30),
    "max_output_bytes": (1024, 10 << 20),
    "max_snapshot_bytes": (1024, 256 << 20),
    "max_pending_tool_calls": (1, 128),
    "snapshot_ttl_seconds": (1, 86_400),
    "max_search_limit": (1, 50),
    "search_default_limit": (1, 50),
    "max_suspended_runs": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeModeConfig:
    """The limits of code mode. `clamped` puts every number into its range."""

    languages: tuple[Language, ...] = LANGUAGES
    timeout_ms: int = 10_000
    memory_limit_bytes: int = 64 << 20
    max_output_bytes: int = 64 << 10
    max_snapshot_bytes: int = 10 << 20
    max_pending_tool_calls: int = 16
    snapshot_ttl_seconds: int = 900
    search_default_limit: int = 8
    max_search_limit: int = 50
    max_suspended_runs: int = 64

    def clamped(self) -> "CodeModeConfig":
        """The same with every number in its range, and the default search under the maximum."""
        numbers = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        bounded = {name: min(max(numbers[name], low), high) for name, (low, high) in RANGES.items()}
        least = min(bounded["search_default_limit"], bounded["max_search_limit"])
        return replace(self, **(bounded | {"search_default_limit": least}))
