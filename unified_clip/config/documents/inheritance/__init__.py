"""Combine a configuration file with its base files and with other files that it names, as trainers do."""
