"""The configuration formats of MindSpore trainers."""
