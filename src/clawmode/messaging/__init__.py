"""Messages from people and systems, and the replies to them."""
