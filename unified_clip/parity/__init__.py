"""The parity engine: the same cases on every framework, compared with each other, with exact arithmetic and with the
frameworks' functions.

One worker process for each framework runs the cases (`workers/`); a suite is data (`suite/`);
`judge/` compares each outcome with the exact result and finds causes; `known/` has what frameworks are known to do
otherwise; `report/` writes what came of it.
"""
