"""Read Python source: its tree, what its names stand for, where gradients flow, and edits."""
