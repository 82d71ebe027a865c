"""Tables, engine, directory, projection."""
