"""Everything that a terminal shows and asks: cells, turns, chat, listings, doctor."""
