"""The computation of the rule: on raw memory on the host, or by a framework's own operations."""
