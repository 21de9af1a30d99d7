"""Views of a comparison of two runs: sentences, JSON, the terminal, and an HTML page."""
