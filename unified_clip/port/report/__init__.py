"""A report of ported code: JSON, page and terminal."""
