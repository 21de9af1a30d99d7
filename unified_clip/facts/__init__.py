"""Facts about other people's products, as rows of TOML. A row is added without touching code."""
