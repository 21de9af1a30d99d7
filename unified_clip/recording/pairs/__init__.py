"""Pair the clip calls and the parameters of two recorded runs."""
