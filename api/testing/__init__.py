"""Bridges for the tests of those who use the bridge; `api.pytest_plugin` has them as fixtures."""
