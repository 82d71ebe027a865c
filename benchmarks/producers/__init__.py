"""The producer's side: relays beside each other, what an outbox row costs, transactions of the SDK."""
