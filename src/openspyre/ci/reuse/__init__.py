"""PyTorch's tests reused as they are: rules about them, their run in isolation, and an account."""
