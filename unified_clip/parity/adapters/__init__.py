"""An adapter makes a framework's tensors and calls the framework's clip functions in a parity worker."""
