"""What must fit together."""

SPARK_VERSION = "4.0.0"  # the only one whose Kafka connector is complete on Maven Central
