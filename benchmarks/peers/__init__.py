"""Other clients with their fastest honest settings, each run in a separate process without reliamsg."""
