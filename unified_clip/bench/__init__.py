"""Compare the speed of unified_clip with that of the frameworks' functions: `unified-clip bench`."""
