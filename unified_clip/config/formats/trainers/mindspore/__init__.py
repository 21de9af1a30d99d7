"""The formats of trainers on MindSpore."""
