"""The in-memory log, with the rules of a real Kafka."""
