"""The host path computes on raw memory, and the device path by a framework's own operations."""
