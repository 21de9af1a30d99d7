"""The backends of the frameworks. Each backend imports only its own framework."""
