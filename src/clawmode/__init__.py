"""A Python runtime that gives a language model two tools, `exec` and `wait`."""
