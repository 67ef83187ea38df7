"""MCP: servers as tools, and code mode as a server."""
