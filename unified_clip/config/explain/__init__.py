"""Explain the effect of a configuration, or how two configurations differ: `unified-clip explain`."""
