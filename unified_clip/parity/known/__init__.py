"""Known differences of the frameworks' functions: measure them, and update the list."""
