"""The rule of clipping, and the interfaces of frameworks. No module here imports a framework or NumPy."""
