"""Owns journal queues and writes what follows from them."""
