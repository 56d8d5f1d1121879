"""How journals leave a client: segments on their way to a directory or an object store."""
