"""Apply the table `check`: require clips, require that clips are off, and ignore findings."""
