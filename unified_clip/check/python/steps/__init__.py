"""Find steps without a clip, and clips of scaled gradients."""
