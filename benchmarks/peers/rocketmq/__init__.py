"""A real RocketMQ: name server, broker and its own Java client."""
