"""What a run reads: window, sources, the envelope."""
