"""A real Kafka broker for development and tests."""
