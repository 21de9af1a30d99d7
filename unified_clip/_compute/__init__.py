"""The host path, which uses raw memory, and the device path, which uses the framework's operations."""
