"""Our side; each run is a separate process."""
