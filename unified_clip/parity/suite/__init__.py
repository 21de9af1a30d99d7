"""Suites as data: cases, gradients and frameworks, read from TOML files."""
