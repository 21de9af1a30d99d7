"""Find the recipe of a training run from its own numbers, and compare the recipes of two runs."""
