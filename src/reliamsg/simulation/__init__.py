"""The product in a simulated world: its real protocol, stores and engines under one seeded scheduler.

There are no threads, sockets or sleeps, so a seed always produces the same run, on any machine. See
docs/how-to/simulate.md.

:class:`~reliamsg.simulation.world.World` composes everything, and :mod:`~reliamsg.simulation.runner` runs it:

* the world: clock, network, disk, broker, transport, executor, process, producer, consumer
* faults: faults (the dice), environment, attacker, disk_faults, client_clock, hole
* judges: oracle, error_judge, announcements, consumer_journal, stalls, comparison
"""
