"""Find why two training steps differ, if their clip calls do not explain it."""
