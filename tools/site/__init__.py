"""`python -m tools.site` writes the sources of the site to build/docs. `make docs` builds it from them."""
