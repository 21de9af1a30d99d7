"""The adapters of the parity workers, one module per framework: its own functions, and tensors as cases need them."""
