"""What clipping costs, ours beside the frameworks' own: `unified-clip bench`. See docs/performance.md."""
