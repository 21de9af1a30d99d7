"""Run cases in one process per framework, and collect the results."""
