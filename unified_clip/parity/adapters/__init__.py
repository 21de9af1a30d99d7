"""The adapters with which a parity worker makes a framework's tensors and calls its clip functions."""
