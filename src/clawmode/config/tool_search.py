"""What an operator can set about Tool Search: plain data, with the page's defaults and ranges."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

SearchMode: TypeAlias = Literal["code", "tools", "directory"]

TIMEOUTS = (1000, 60_000)
"""The range of `code_timeout_ms`."""

MAX_LIMITS = (1, 50)
"""The range of both limits of searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSearchConfig:
    """The settings of Tool Search, in their ranges.

    Attributes:
        enabled: Whether runs without code mode have it.
        code_timeout_ms: Wall-clock time of one body of `tool_search_code`.
    """

    enabled: bool = False
    mode: SearchMode = "code"
    code_timeout_ms: int = 10_000
    search_default_limit: int = 8
    max_search_limit: int = 20


DEFAULTS = ToolSearchConfig()
