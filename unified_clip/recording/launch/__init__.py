"""`unified-clip record`: run a command, and record each of its processes."""
