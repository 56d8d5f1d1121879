"""The chaos laboratory: named faults at real brokers and real processes, each judged by its files.

:mod:`~reliamsg.lab.chaos.catalogue` has them all by name, :mod:`~reliamsg.lab.chaos.runner` runs one. Nothing is
imported here, since every application of a run imports this package.
"""
