"""Compare the frameworks' functions with the exact results, and look up the differences in `known.toml`."""
