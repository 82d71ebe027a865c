"""Measures the bridge on a real Kafka: `python -m benchmarks`."""
