"""The adapters, one for each framework. A parity worker uses an adapter to make tensors and to call clip functions."""
