"""`unified-clip record` puts this directory on PYTHONPATH. The modules here import only the standard library."""
