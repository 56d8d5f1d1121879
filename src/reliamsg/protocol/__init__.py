"""The protocol, without I/O, threads or clocks: time comes in as an argument."""
