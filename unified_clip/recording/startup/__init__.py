"""`unified-clip record` puts this directory on PYTHONPATH. Its modules import only the standard library."""
