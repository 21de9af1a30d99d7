"""The formats of trainers on PyTorch."""
