"""Calls to the bridge, and what runs a local transaction with them."""
