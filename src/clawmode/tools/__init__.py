"""What a tool is, whether a call may run, and the one way to call it."""
