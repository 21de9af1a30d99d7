"""Show a run as JSON, a page, Markdown, JUnit XML and on the terminal."""
