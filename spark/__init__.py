"""Reconciliation: proves from the topics alone that what was committed is what consumers can read."""

SPARK_VERSION = "4.0.0"  # the only one whose Kafka connector is complete on Maven Central
