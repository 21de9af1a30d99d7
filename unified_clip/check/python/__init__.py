"""Find clips in Python source, and what they clip."""
