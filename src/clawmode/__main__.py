"""`python -m clawmode` is the command `clawmode`. Names the extra of a library that is missing."""

import gc
import sys

from clawmode.exceptions import MissingExtra, naming_extras


def main() -> None:
    """Runs the command `clawmode`; the entry point of the package."""
    _postpone_collection()
    try:
        with naming_extras():
            starts = sys.argv[1:2] in (["run"], ["wait"]) and "--help" not in sys.argv
            # Without a standard stream, a pipe of the template would take its descriptor.
            if starts and None not in (sys.stdin, sys.stdout, sys.stderr):
                # Booting the workers takes as long as importing the modules of the command.
                from clawmode.sandbox import template

                template.start_early()
            from clawmode.commands import cli

            cli.main()
    except MissingExtra as error:
        sys.exit(f"clawmode: {error}")


def _postpone_collection() -> None:
    """Puts off the first garbage collection: until then almost all objects are those of modules."""
    usual = gc.get_threshold()

    def restore(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(restore)
            gc.set_threshold(*usual)
            gc.freeze()

    gc.callbacks.append(restore)
    gc.set_threshold(100_000, *usual[1:])


if __name__ == "__main__":
    main()
