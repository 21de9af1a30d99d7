"""The formats of Paddle, and of trainers on Paddle."""
