"""What the HTML pages share: templates, styles and SVG plots. A page loads no other file, so it opens from the disk."""
