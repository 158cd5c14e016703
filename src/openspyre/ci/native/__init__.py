"""A device base for PyTorch's device-generic tests, and a worker that runs them in isolation.

Nothing here imports the rest of the package: these are the parts that could be PyTorch's own.
README.md beside this file says which gap of the native hooks each of them closes.
"""
