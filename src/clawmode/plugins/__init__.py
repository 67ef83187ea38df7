"""Plugins: packages or folders that bring tools, hooks, namespaces and skills."""
