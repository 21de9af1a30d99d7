"""Run the same clip calls on every framework.

`suite/` reads the cases, and `workers/` runs them in one process for each framework. `judge/` compares each result with
the exact result. `known/` contains the accepted differences. `report/` writes the report.
"""
