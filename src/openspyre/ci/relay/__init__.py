"""Upstream's relay: what it sends is received, what became of it is reported."""
