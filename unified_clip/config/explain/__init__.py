"""The package of `unified-clip explain`, which explains the effect of a configuration, or how two configurations
differ.
"""
