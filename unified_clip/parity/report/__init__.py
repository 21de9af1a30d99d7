"""Write the report of a run as JSON, an HTML page, Markdown and JUnit XML, and print it."""
