"""What the sandbox costs, measured: `make bench` for speed, `make soak` for leaks."""
