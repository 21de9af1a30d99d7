"""Configurations in Python, as mmengine reads them. They are parsed and never run."""
