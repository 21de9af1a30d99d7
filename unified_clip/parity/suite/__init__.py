"""Suites: cases, gradients and frameworks, read from TOML files."""
