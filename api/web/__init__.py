"""The HTTP interface: a module for each resource, and the road that leads to them."""
