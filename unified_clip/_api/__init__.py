"""The public functions and classes, written once for all frameworks. `unified_clip.torch` and the other namespaces pass
their framework's backend to them.
"""
