"""Everything that the configuration names, put together for the commands and the gateway."""
