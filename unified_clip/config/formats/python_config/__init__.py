"""Configurations in Python, which trainers such as mmengine read. unified_clip parses these configurations, and never
runs them.
"""
