"""The parts put together, as the commands and the gateway start them."""
