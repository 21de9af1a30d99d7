"""The frameworks' backends: one module or folder per framework, which imports no other framework."""
