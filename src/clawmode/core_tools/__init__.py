"""The tools that every agent knows: files, a shell, the web. `suite` puts them together.

Models call them and are not trusted: files stay below one folder, addresses are public ones, and
what a command may be is decided before it runs.
"""
