"""Suites as data: cases, gradients and known settings, read from TOML files."""
