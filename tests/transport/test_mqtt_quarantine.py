"""Finding out which of several addresses a broker closes the connection over."""

from __future__ import annotations

from reliamsg.transport.mqtt.quarantine import QUARANTINE_SECONDS, AddressQuarantine


def test_addresses_that_are_unanswered_together_are_isolated_and_not_quarantined() -> None:
    quarantine = AddressQuarantine("dc1", "sent to")
    for at in range(5):
        assert not quarantine.connection_ended(["innocent", "newcomer"], "reset", float(at))
    assert quarantine.refused == ()
    assert "innocent" in quarantine
    assert quarantine.may_try("innocent", 5.0)
    quarantine.clear("innocent")
    assert "innocent" not in quarantine


def test_one_alone_is_quarantined_by_the_second_connection() -> None:
    quarantine = AddressQuarantine("dc1", "sent to")
    assert not quarantine.connection_ended(["newcomer"], "reset", 0.0), "it may be a coincidence"
    assert not quarantine.refused
    assert quarantine.may_try("newcomer", 1.0)
    assert quarantine.connection_ended(["newcomer"], "reset", 1.0), "and now it is none"
    assert quarantine.refused == ("newcomer",)
    assert not quarantine.may_try("newcomer", 1.0 + QUARANTINE_SECONDS[0] - 0.1)
    assert quarantine.may_try("newcomer", 1.0 + QUARANTINE_SECONDS[0])
    assert quarantine.connection_ended(["newcomer"], "reset", 20.0), "it needs no second proof any more"
    assert not quarantine.may_try("newcomer", 20.0 + 2 * QUARANTINE_SECONDS[0] - 0.1)
    quarantine.clear("newcomer")
    assert not quarantine.refused
