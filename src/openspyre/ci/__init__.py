"""What works: PyTorch's own test material run on the card, and what became of it."""
