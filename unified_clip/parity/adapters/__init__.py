"""One adapter for each framework. A parity worker uses the adapter to make tensors and to call clip functions."""
