"""Run the same clip calls on every framework. Compare the results with exact arithmetic and with the frameworks'
functions.

`suite/` reads the cases. `workers/` runs them, one process per framework. `judge/` compares each result with the exact
result, and finds the causes of differences. `known/` lists the accepted differences of the frameworks' functions.
`report/` writes the report.
"""
