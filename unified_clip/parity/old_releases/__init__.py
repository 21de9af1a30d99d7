"""Call clip functions in old environments, in which unified_clip cannot run.

This folder needs Python 3.7, NumPy and a framework. It imports nothing of the rest of unified_clip, except
`recorder/__init__.py`, which also runs alone.
"""
