"""The wire between the gateway and its clients."""
