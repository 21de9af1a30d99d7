"""Read Python source: tree, names, and flow of gradients. Edit it."""
