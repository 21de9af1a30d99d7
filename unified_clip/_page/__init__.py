"""What the HTML pages share: templates, styles, and plots as SVG. A page loads nothing, and opens from the disk."""
