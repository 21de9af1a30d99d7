"""The clip configuration for every framework and trainer, `unified_clip.ClipConfig`."""
