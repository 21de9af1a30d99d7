"""The report that compares two runs: sentences, JSON and an HTML page."""
