"""The clip configuration for every framework and trainer: `clip_config.py` has `unified_clip.ClipConfig`."""
