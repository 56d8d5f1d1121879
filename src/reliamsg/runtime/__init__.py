"""What producers and consumers share: threads, waking, clocks, callbacks, waiting journal rows, and their export."""
