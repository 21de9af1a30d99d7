"""Find out why two clips of the same gradients differ: a result and the exact one, or a recorded call and its port."""
