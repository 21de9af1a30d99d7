"""Find the cause if two clips of the same gradients differ: a result and the exact result, or a recorded call and its
port. For the causes of differences between two recordings, see `recording/causes`.
"""
