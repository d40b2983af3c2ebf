"""A request's life, from its first byte to its last."""
