"""Read Jupyter notebooks as Python source."""
