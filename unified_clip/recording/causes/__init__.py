"""Explain why two recorded runs differ."""
