"""`python -m clawmode` is the command `clawmode`."""

from clawmode.cli import main

if __name__ == "__main__":
    main()
