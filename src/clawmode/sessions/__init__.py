"""What is kept of conversations: sessions, transcripts and trajectories."""
