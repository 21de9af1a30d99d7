"""The public names, written once for all frameworks; `unified_clip.torch` and the other namespaces bind them."""
