"""Distributed gradients: ownership of elements, and total norms over all ranks."""
