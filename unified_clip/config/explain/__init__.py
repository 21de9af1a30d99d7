"""The package of `unified-clip explain`, which explains a configuration, or how two configurations differ."""
