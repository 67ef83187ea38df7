"""Property tests: how many examples `make test` and `make test-long` try."""

from typing import Any

from hypothesis import settings

SHORT, LONG = "short", "long"
"""Profiles: of `make test`, and of `make test-long`, which passes `--hypothesis-profile=long`."""

settings.register_profile(SHORT, max_examples=25, deadline=None)
settings.register_profile(LONG, max_examples=400, deadline=None)


def examples(count: int, **options: Any) -> settings:
    """Return settings for a property test.

    Args:
        count: The examples that `make test-long` multiplies by four; `make test` tries a quarter.
        options: Other settings of hypothesis.
    """
    is_long = settings.get_current_profile_name() == LONG
    tried = count * 4 if is_long else max(count // 4, 5)
    return settings(max_examples=tried, deadline=None, **options)
