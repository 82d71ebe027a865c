"""What must fit together."""

SPARK_VERSION = "4.0.0"  # which this job is tried with
