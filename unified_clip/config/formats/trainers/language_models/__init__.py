"""Trainers of language models."""
