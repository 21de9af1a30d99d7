"""The directory that `unified-clip record` puts on PYTHONPATH. Its modules import the standard library only."""
