"""The gateway: one process that serves agents to many clients, under one policy."""
