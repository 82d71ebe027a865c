"""A bridge for the tests of a service that uses it; `outbox.pytest_plugin` has it as fixtures."""
