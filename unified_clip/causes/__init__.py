"""Find the cause if two clips of the same gradients differ: result and exact result, or recorded call and its port."""
