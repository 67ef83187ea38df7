"""Conversations with people: messages become turns and commands, and runs become replies."""
