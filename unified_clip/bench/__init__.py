"""`unified-clip bench`: compare the speed of unified_clip and of the frameworks' functions. See docs/performance.md."""
