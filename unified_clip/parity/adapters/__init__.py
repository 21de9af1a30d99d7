"""One adapter per framework. The parity worker of a framework uses it to make tensors and to call clip functions."""
