"""The configuration formats of PyTorch trainers for language models."""
