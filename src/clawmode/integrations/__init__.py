"""Adapters for agent frameworks, one module for each, and what they share.

`sessions` has the sessions of a framework in this process, `session` the programs of one of them,
and `records` what the store keeps of their calls.
"""

from importlib import metadata


def require(package: str, extra: str, at_least: str, below: str) -> None:
    """Checks that a framework is installed, in a version that the adapter knows.

    Args:
        package: The name of the framework's distribution.
        extra: The extra of clawmode that installs the framework.
        at_least: The oldest version that works.
        below: The first version that may not work.

    Raises:
        ImportError: The framework is missing, too old or too new.
    """
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = None
    if found is None or not _numbers(at_least) <= _numbers(found) < _numbers(below):
        seen = "which is not installed" if found is None else f"but {found} is installed"
        raise ImportError(
            f"This adapter needs {package} >={at_least},<{below}, {seen}: "
            f'pip install "clawmode[{extra}]"'
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: 2.66.0rc1 counts as 2.66.0."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    while numbers and not numbers[-1]:
        numbers.pop()  # 3 and 3.0.0 are the same version
    return tuple(numbers)
