"""Rewriting rules: one module per kind of clip."""
