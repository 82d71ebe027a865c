"""Rules without I/O, clock or randomness."""
