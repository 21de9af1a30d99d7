CLIP = 1.0
HALF = CLIP / 2
LIMITS = {"clip": 5.0, "other": 1}
CHANGED = 1.0
A, (B, C) = 1, (2.0, 3)
