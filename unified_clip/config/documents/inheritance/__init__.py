"""How trainers combine a file with its base files and with others that it names: one class per way."""
