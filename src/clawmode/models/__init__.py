"""Models on the wire: messages and tools in, a stream of events out."""
