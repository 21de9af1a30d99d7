"""The formats of Paddle."""
