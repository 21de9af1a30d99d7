"""The bodies of the public functions and classes, for all frameworks."""
