"""Build hook: the third-party guest files are in place before anything is built.

They are git-ignored, so hatchling would leave them out: each one the lock names is added to the
wheel and the sdist, and nothing else that may lie in the folder. A build from the sdist finds
them there, checks their hashes and asks neither npm nor the network.
"""

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The front end runs this file alone: neither the root nor scripts/ is importable by then.
sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

import guest_files


class GuestFilesHook(BuildHookInterface[Any]):
    """Fetches what is missing, for wheel, sdist and editable install alike."""

    def dependencies(self) -> list[str]:
        """Ask the build front end for npm, only if it is needed and the machine has none."""
        with without_traceback():
            return guest_files.build_requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files and name them, from the root of the project, as part of the build."""
        with without_traceback():
            guest_files.fetch()
            lock = guest_files.Lock.read(guest_files.GUEST)
        vendor = guest_files.GUEST.relative_to(Path(self.root).resolve()) / guest_files.VENDOR_NAME
        build_data["artifacts"] += [f"/{(vendor / output).as_posix()}" for output in lock.files]


@contextlib.contextmanager
def without_traceback() -> Generator[None]:
    """End the build with the message of what went wrong, which says what to do."""
    try:
        yield
    except (guest_files.GuestFilesError, OSError) as error:
        sys.exit(f"guest files: {error}")
