"""Compare the speed of unified_clip with the speed of the frameworks' functions: `unified-clip bench`."""
