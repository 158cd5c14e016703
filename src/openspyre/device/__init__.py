"""The torch device "spyre"."""
