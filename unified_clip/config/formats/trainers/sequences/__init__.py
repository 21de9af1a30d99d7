"""The configuration formats of PyTorch trainers for text and speech."""
