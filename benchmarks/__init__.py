"""Benchmarks: ratios against a peer, in pairs that alternate in one run, never absolute promises."""
