"""Reconciliation: proves from the topics alone that what was committed is what consumers can read."""
