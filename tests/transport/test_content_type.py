"""The content type of the plain format: the application's header `content-type`, where other clients expect it."""

from __future__ import annotations

import pytest

from reliamsg.transport.content_type import content_type_of
from reliamsg.wire.data import CONTENT_TYPE
from tests.transport.tools import message

LONGEST = "text/" + "x" * 250


@pytest.mark.parametrize("named", ["application/json", "text/plain; charset=utf-8", LONGEST])
def test_the_header_is_the_content_type(named: str) -> None:
    assert (
        content_type_of(message(1, content_type=None, headers={"rm-v": "1", "content-type": named})) == named
    )


@pytest.mark.parametrize("named", ["", CONTENT_TYPE, LONGEST + "x", "ä" * 128])
def test_what_can_not_be_a_content_type_is_a_header_only(named: str) -> None:
    """Among these, what would make a consumer take the message for a data frame."""
    assert (
        content_type_of(message(1, content_type=None, headers={"rm-v": "1", "content-type": named})) is None
    )


def test_without_the_header() -> None:
    assert (
        content_type_of(message(1, content_type=None, headers={"rm-v": "1", "Content-Type": "text/plain"}))
        is None
    )
    assert content_type_of(message(1, content_type=None, headers=None)) is None


def test_a_data_frame_has_its_own() -> None:
    assert content_type_of(message(1, content_type=CONTENT_TYPE)) == CONTENT_TYPE
