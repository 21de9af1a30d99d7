"""The formats of trainers for text and speech, on PyTorch."""
