"""The directory that `unified-clip record` puts on PYTHONPATH. The modules in this directory import the standard
library only."""
