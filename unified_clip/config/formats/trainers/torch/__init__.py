"""The configuration formats of PyTorch trainers."""
