"""The package of `unified_clip.ClipConfig`, the clip configuration for every framework and trainer."""
