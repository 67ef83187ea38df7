"""The command line: one module per group of commands. Arguments in, calls out."""
