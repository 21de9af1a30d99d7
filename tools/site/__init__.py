"""`python -m tools.site` writes the sources of the site to build/docs. `make docs` builds the site from these
sources."""
