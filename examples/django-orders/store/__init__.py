"""A shop in Django."""
