"""Gradients on NVIDIA GPUs."""
