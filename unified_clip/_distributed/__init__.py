"""Gradients that several processes hold together: who counts what, and one norm over all of them."""
