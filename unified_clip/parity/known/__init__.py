"""Measure how the frameworks' functions differ, and match or update the suite's list of accepted differences."""
