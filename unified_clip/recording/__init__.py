"""Record clip calls to an event file, and compare two recordings."""
