"""The two paths of computation. The host path reads and writes raw memory. The device path calls the framework's
operations.
"""
