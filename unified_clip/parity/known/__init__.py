"""Compare the frameworks' functions with exact arithmetic, and look up the differences in `known.toml`."""
