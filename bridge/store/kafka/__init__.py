"""The Kafka adapter of the store."""
