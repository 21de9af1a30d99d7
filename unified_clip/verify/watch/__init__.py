"""Watch the frameworks' own clipping functions: one module per framework."""
