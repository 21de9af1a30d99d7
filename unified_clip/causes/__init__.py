"""Find the causes of a wrong or differing clip call, for `parity`, `compare` and `verify`."""
