"""The configuration formats of trainers for reinforcement learning."""
