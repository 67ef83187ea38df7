"""The process boundary: guest code runs in workers, and this package is all they load."""
