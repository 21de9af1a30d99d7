"""The package of `unified-clip explain`."""
