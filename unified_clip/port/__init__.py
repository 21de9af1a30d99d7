"""Rewrite the gradient clips in source code for unified_clip or PyTorch. This package imports no framework."""
