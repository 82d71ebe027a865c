"""Asks producer groups what became of their transactions."""
