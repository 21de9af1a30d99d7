"""Adapters: one module per framework. A parity worker uses it to make tensors and to call the framework's functions."""
