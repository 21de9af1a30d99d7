"""Find the causes of differences between two recorded runs."""
