"""Journals that several tests of the audit judge, and its judgement of them."""

from __future__ import annotations

import pytest

from reliamsg.checker import Chain
from tests.audit.equality import Outcome, by_audit


@pytest.fixture(scope="session")
def chains() -> list[Chain]:
    """All journals of :mod:`tests.audit.together`."""
    # Imported here because the import sets Hypothesis' settings, which are made after this file is read.
    from tests.audit.together import all_chains

    return all_chains()


@pytest.fixture(scope="session")
def judged(chains: list[Chain]) -> Outcome:
    """The audit's judgement of all of them."""
    return by_audit(chains)
