"""Read and edit Python source: syntax tree, names, and flow of gradients."""
