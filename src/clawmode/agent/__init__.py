"""The agent: a model, tools and a conversation, run turn by turn."""
