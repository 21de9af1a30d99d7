"""Templates, styles and SVG plots for HTML pages. A page loads no other file, so you can open it from the disk."""
