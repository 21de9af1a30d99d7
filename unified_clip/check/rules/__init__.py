"""Apply the rules of the table `check`, such as `check.require`, `check.off` and `check.ignore`."""
