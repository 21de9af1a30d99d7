"""Explain what a configuration does, or how two differ: `unified-clip explain`."""
