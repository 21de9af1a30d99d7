"""Known differences of the frameworks' own functions: measure them, and update the list."""
