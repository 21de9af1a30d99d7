"""The trainers whose files a row cannot describe, with one module per trainer."""
