"""The commands: what each takes, and whom it calls."""
