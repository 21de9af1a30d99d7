"""`python -m unified_clip` is the command `unified-clip`."""

from .cli import main

raise SystemExit(main())
