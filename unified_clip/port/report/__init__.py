"""The report of `unified-clip port` as JSON, text and HTML."""
