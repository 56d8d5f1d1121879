"""Faults of the environment: connections (:mod:`~reliamsg.lab.faults.proxy`), disks and networks."""
