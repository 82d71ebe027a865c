"""The process behind `outbox.testing`: a bridge for the tests of those who use the bridge."""
