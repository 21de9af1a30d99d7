"""Configurations in Python, for trainers such as mmengine. unified_clip parses these configurations, and never runs
them.
"""
