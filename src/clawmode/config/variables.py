"""`${VARIABLE}` in the configuration: what stands for a secret that is kept elsewhere."""

import os
import re
from collections.abc import Mapping

from clawmode.exceptions import ConfigurationError

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}", re.ASCII)


def variable(text: str) -> str | None:
    """The name of the variable that a text stands for; None if it stands for itself."""
    found = _VARIABLE.fullmatch(text.strip())
    return found[1] if found else None


def names_in(text: str) -> list[str]:
    """The variables that a text names anywhere."""
    return _VARIABLE.findall(text)


def read_secret(path: str, text: str | None, environment: Mapping[str, str] | None = None) -> str:
    """A secret as it stands in the configuration: itself, or the variable that it names.

    Raises:
        ConfigurationError: There is none.
    """
    name = variable(text or "")
    known = os.environ if environment is None else environment
    secret = (text or "") if name is None else known.get(name, "")
    if not secret.strip():
        found = "there is none" if name is None else f"the environment variable {name} is not set"
        raise ConfigurationError(f"{path}: {found}", path=path, expected="a secret")
    return secret.strip()
