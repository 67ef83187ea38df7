"""Tasks for models in a simulated company, on three surfaces: `make eval`."""
