"""Export of journals: segments, and their targets in directories and object stores."""
