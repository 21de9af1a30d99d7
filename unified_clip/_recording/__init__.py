"""What `unified_clip.record` is made of."""
