"""Which of several addresses a broker ends connections over."""

from __future__ import annotations

from reliamsg.transport.mqtt.quarantine import QUARANTINE_SECONDS, Suspects


def test_who_is_unanswered_with_others_is_suspected_and_not_condemned() -> None:
    suspects = Suspects("dc1", "sent to")
    for at in range(5):
        assert not suspects.ended(["innocent", "newcomer"], "reset", float(at))
    assert suspects.refused == ()
    assert "innocent" in suspects
    assert suspects.may_try("innocent", 5.0)
    suspects.cleared("innocent")
    assert "innocent" not in suspects


def test_one_alone_is_condemned_by_the_second_connection() -> None:
    suspects = Suspects("dc1", "sent to")
    assert not suspects.ended(["newcomer"], "reset", 0.0), "it may be a coincidence"
    assert suspects.refused == ()
    assert suspects.may_try("newcomer", 1.0)
    assert suspects.ended(["newcomer"], "reset", 1.0), "and now it is none"
    assert suspects.refused == ("newcomer",)
    assert not suspects.may_try("newcomer", 1.0 + QUARANTINE_SECONDS[0] - 0.1)
    assert suspects.may_try("newcomer", 1.0 + QUARANTINE_SECONDS[0])
    assert suspects.ended(["newcomer"], "reset", 20.0), "it needs no second proof any more"
    assert not suspects.may_try("newcomer", 20.0 + 2 * QUARANTINE_SECONDS[0] - 0.1)
    suspects.cleared("newcomer")
    assert suspects.refused == ()
