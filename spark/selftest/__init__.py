"""Seeds anomalies and looks for them."""
