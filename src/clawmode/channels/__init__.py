"""Channels: ways for messages to come in and go out."""
