"""The rule itself. Nothing in here imports a framework, NumPy included."""
