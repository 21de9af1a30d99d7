"""Known differences: measure how the frameworks' functions differ from the exact results. Match or update the suite's
list of accepted differences.
"""
