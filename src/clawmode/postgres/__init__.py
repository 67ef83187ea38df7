"""Parked and running cells in PostgreSQL, shared by processes on several machines."""
