"""`unified-clip record`: run a command, and record every process of it."""
