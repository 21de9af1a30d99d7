"""Port gradient clipping in source to another framework. Imports no framework."""
