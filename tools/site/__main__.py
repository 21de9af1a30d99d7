"""`python -m tools.site`: write the sources of the site."""

from .build import main

main()
