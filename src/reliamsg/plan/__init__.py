"""The map of losing a message: how likely each state of a message is, under given rates of incidents.

:func:`make_plan` computes it from rates (:func:`read_rates`) and settings (:func:`read_client`). The package imports no
client, and opens no file of one.
"""

from reliamsg.plan.client import Client, read_client
from reliamsg.plan.estimates import Estimate, Estimated, estimate
from reliamsg.plan.model import Fate
from reliamsg.plan.page import write_page
from reliamsg.plan.planning import Change, Compared, Influence, Plan, make_plan
from reliamsg.plan.rates import (
    AllSites,
    ConsumerRates,
    Partitions,
    ProducerRates,
    Rates,
    SiteRates,
    Traffic,
    read_rates,
)

__all__ = [
    "AllSites",
    "Change",
    "Client",
    "Compared",
    "ConsumerRates",
    "Estimate",
    "Estimated",
    "Fate",
    "Influence",
    "Partitions",
    "Plan",
    "ProducerRates",
    "Rates",
    "SiteRates",
    "Traffic",
    "estimate",
    "make_plan",
    "read_client",
    "read_rates",
    "write_page",
]
