"""The parity engine: the same cases on every framework, compared with each other, with exact arithmetic and with the
frameworks' own functions.

One worker process for each framework runs the cases (`launch`, `worker`, `adapter_*`); a suite is data (`cases`,
`calls`); `oracle` says what is right, `compare` how far a result is from it, `diagnose` why, `report` what came out.
"""
