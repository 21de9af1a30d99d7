"""Rewrite the gradient clipping in source code for another framework. This package imports no framework."""
