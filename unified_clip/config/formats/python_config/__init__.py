"""Configurations in Python, such as mmengine's. The code is parsed, and never run."""
