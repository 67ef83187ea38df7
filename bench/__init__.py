"""What the sandbox costs, measured: `make bench` for speed, `make soak` for leaks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "scripts"))  # for postgres_server
