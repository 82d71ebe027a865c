"""What all faces call; stateless."""
