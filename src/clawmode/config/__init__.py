"""The configuration file: how it is read, checked and resolved."""
