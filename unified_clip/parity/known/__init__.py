"""Measure the differences of the frameworks' functions, and compare the differences with the suite's list."""
