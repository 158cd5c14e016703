"""Which of PyTorch's tests a change of PyTorch calls for: `stages` is general, the rest is ours."""
