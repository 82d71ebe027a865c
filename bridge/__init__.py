"""The bridge: log, state machine, settler."""
