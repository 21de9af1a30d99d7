"""The configuration formats of trainers, with one module per trainer."""
