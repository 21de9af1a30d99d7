"""Record calls of the frameworks' own clipping functions: one module per framework."""
