"""Find the clips that a trainer in Python source leaves to another library."""
