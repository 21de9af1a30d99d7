"""Run the same clip calls on every framework.

`suite/` reads the cases, and `workers/` runs the cases in one process for each framework. `judge/` compares each result
with the exact result. `known/` handles the list of accepted differences, known.toml. `report/` writes the report.
"""
