"""Benchmarks: ratios to a peer, measured alternately in one run; never absolute promises."""
