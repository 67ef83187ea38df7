"""Owns the gaps: requirements that no test covers yet.

Written by `python tests/contract/test_coverage.py --write`, never by hand.
"""

MISSING: frozenset[str] = frozenset()
