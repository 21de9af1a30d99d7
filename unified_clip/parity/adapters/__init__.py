"""Adapters: one module per framework, with which a parity worker makes tensors and calls the framework's functions."""
