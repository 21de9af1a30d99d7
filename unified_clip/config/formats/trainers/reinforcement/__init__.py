"""The formats of trainers for reinforcement learning."""
