"""Record clip calls to a file, and compare two recordings."""
