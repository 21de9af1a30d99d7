"""Apply the lists of files in the table `check`: required clips, clips that are off, and ignored findings."""
