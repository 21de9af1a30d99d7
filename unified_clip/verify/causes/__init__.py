"""Find why two training steps differ, if the clip calls do not explain the difference."""
