"""Measure how the frameworks' functions differ, and compare the differences with the suite's list."""
