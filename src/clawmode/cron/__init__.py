"""Turns of agents at set times."""
