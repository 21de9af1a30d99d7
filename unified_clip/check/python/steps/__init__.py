"""Find the steps of optimizers and the optimizers without a clip, in a file that clips for another optimizer."""
