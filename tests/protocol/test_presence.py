"""Which groups are proven at a site: rules P15 and P16."""

from __future__ import annotations

import pytest

from reliamsg.protocol.sender.presence import Place, Presence

G: Place = ("orders", 0, "g")
H: Place = ("orders", 0, "h")


@pytest.mark.parametrize("evidence", ["reported", "subscribed", "marked"])
def test_each_kind_of_evidence_proves_its_group_alone(evidence: str) -> None:
    presence = Presence()
    assert not presence.is_proven(G)
    assert getattr(presence, evidence)(G)
    assert presence.is_proven(G)
    assert not presence.is_proven(H)
    assert not getattr(presence, evidence)(G), "it changes nothing the second time"
    assert presence.take_changes() == {G: evidence == "marked"}
    assert not presence.changed


def test_what_was_stored_holds_until_it_is_refuted() -> None:
    presence = Presence([(G, False), (H, True)])
    presence.connected()
    assert presence.is_proven(G)
    assert presence.is_proven(H)
    assert not presence.not_marked(G), "there never was one"
    assert presence.not_marked(H)
    assert presence.not_subscribed(G)
    assert presence.take_changes() == {G: None, H: None}


@pytest.mark.parametrize("absent", ["not_subscribed", "not_marked"])
def test_a_group_that_was_heard_outweighs_a_broker_that_does_not_know_it(absent: str) -> None:
    presence = Presence([(G, True)])
    presence.connected()
    presence.reported(G)
    assert not getattr(presence, absent)(G)
    assert presence.is_proven(G)
    presence.connected()  # to a broker that was wiped, perhaps: what was heard before says nothing
    assert getattr(presence, absent)(G)


@pytest.mark.parametrize(("there", "gone"), [("subscribed", "not_subscribed"), ("marked", "not_marked")])
def test_what_the_broker_itself_had_shown_is_gone_when_it_says_so(there: str, gone: str) -> None:
    presence = Presence()
    presence.connected()
    presence.reported(G)
    getattr(presence, there)(G)
    assert getattr(presence, gone)(G)
    assert not presence.is_proven(G)
    assert presence.reported(G), "it may come back"


def test_what_could_not_be_stored_is_stored_later() -> None:
    presence = Presence()
    presence.subscribed(G)
    changes = presence.take_changes()
    presence.not_subscribed(G)
    presence.put_back(changes)
    assert presence.take_changes() == {G: None}


def test_a_group_that_is_not_named_any_more_is_forgotten() -> None:
    presence = Presence([(G, False)])
    presence.forget(G)
    presence.forget(H)
    assert presence.take_changes() == {G: None}
