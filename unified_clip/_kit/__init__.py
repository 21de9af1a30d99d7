"""Helpers of several tools. None of them imports another part of unified_clip."""
