"""`python -m tools.site`: write the sources of the site, and the reports of its gallery."""

from . import gallery
from .build import main

gallery.write(main())
