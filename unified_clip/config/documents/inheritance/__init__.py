"""Merge a configuration file with the files that it names, as trainers do."""
