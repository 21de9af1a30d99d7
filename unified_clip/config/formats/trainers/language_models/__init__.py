"""The formats of trainers for language models, on PyTorch."""
