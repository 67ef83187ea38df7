"""Sends the requests to Anthropic of a program that a test runs to the server at `SCRIPT_URL`.

Python imports this module at its start if its folder is in `PYTHONPATH`.
"""

import os
from dataclasses import replace
from typing import Any

from clawmode.models import providers

os.environ["ANTHROPIC_BASE_URL"] = os.environ["SCRIPT_URL"]  # for the SDK, in frameworks
known: Any = providers.KNOWN
known["anthropic"] = replace(known["anthropic"], base_url=os.environ["SCRIPT_URL"])
# As if the server were far away: a provider on this machine gets no key from the environment.
providers.is_local = lambda base_url: False
