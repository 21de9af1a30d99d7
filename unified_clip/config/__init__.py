"""One clip configuration for every framework and trainer: `unified_clip.ClipConfig` is in `clip_config.py`."""
