"""`python -m clawmode` is the command `clawmode`."""

from clawmode.commands.cli import main

if __name__ == "__main__":
    main()
