"""The configuration formats of Paddle, and of trainers that use Paddle."""
