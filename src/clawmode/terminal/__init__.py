"""What is shown and asked at a terminal."""
