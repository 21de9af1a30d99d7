"""The formats of MindSpore."""
