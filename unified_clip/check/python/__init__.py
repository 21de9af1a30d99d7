"""Find clips in Python source."""
