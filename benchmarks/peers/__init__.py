"""Other clients at their best honest settings, each run a process in an environment without reliamsg."""
