"""The backends of the frameworks. Each backend is a module or a folder, and imports no other framework."""
