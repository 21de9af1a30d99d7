"""Rules that rewrite clips: one module per kind of clip."""
