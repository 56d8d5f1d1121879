"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.amplify import AMPLIFIED
from tests.fuzz.audited import AUDITED
from tests.fuzz.files import FILES
from tests.fuzz.targets import NETWORK

__all__ = ["TARGETS"]

TARGETS = {target.name: target for target in (*NETWORK, *AMPLIFIED, *FILES, *AUDITED)}
