"""Deliberate defects in the product, each of which the simulator or a test must convict: ``make mutants``."""
