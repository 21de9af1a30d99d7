"""Compare two recorded runs: `unified-clip compare`."""
