"""The core tools of agents: files, a shell, the web. `suite` combines them.

The models that call them are not trusted: files must be in one folder, addresses must be public,
and every command is checked before it runs.
"""
