"""HTTP API, command line and wiring."""
