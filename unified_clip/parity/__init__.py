"""Run the same cases on every framework. Compare the results with exact arithmetic and with the frameworks' functions.

`suite/` reads the cases. `workers/` runs them, one process per framework. `judge/` compares each result with the exact
one, and finds causes. `known/` lists the accepted differences of native functions. `report/` writes the report.
"""
