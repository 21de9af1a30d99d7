"""One adapter per framework. A parity worker makes tensors and calls clip functions with its framework's adapter."""
