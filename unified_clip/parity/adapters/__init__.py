"""Adapters: with an adapter, a parity worker makes a framework's tensors and calls the framework's clip functions."""
