"""RocketMQ view of a log."""
