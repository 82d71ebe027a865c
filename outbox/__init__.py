"""The producer's side of outbox-bridge: what a service imports to send messages with its local transactions."""
