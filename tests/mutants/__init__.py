"""Deliberate defects in the product, each of which the simulator must convict: ``make mutants``."""
