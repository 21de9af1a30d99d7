"""Merge a configuration file with its base files, as trainers do."""
