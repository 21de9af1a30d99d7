"""The rule. No module here imports a framework or NumPy."""
