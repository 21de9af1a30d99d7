"""Find the effect of a clip call."""
