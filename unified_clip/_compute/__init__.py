"""How the rule is computed: on raw memory on the host, or by a framework's own operations."""
