"""The backends of the frameworks. Each backend is a module or a folder that imports only its own framework."""
