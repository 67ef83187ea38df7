"""`exec` and `wait`: programs, their calls, and what is kept while they wait."""
