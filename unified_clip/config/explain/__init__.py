"""The package of `unified-clip explain`. The command explains a configuration, or how two configurations differ."""
