"""One module per framework: its own functions, and what a parity worker needs beside the public names."""
