"""The code that all frameworks share, and the interfaces of backends. No module here imports a framework or NumPy."""
