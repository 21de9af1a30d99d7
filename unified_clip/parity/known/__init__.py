"""Known differences: measure how the frameworks' functions differ, and match or update the accepted list."""
