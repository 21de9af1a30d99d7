"""Apply the rules of the table `check`, such as `check.require` and `check.ignore`."""
