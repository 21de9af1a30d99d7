"""Rewrite gradient clipping in source code for another framework. Imports no framework."""
