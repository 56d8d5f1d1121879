"""Producers with two histories: remarks, which take nothing from a verdict.

An outbox that was put back from a backup, or copied, goes on twice. Where every message of both is accounted for there
is nothing to complain of, but people want to know.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import stream_of
from reliamsg.checker.report import KINDS, Finding
from reliamsg.store.journal import JournalRow

__all__ = ["find_forks"]


def find_forks(chains: Iterable[Chain]) -> list[Finding]:
    """A ``fork`` for each that a group met, that made a producer move messages, or by which one was fenced.

    What two chains of one client begin with is told once.
    """
    found: dict[Finding, None] = {}
    for chain in chains:
        for row in chain.rows:
            if chain.role == "group" and row.kind == "conflict":
                found[_met(chain.client, row)] = None
            elif chain.role == "producer" and row.kind == "renumbered":
                new = (row.detail or {}).get("epoch")
                found[_fork(row, f"they have epoch {new} now")] = None
            elif chain.role == "producer" and row.kind == "fenced":
                found[_fenced(chain.client, row)] = None
    return list(found)


def _met(group: str, row: JournalRow) -> Finding:
    # Of an epoch that was only told of, no message may be there.
    ranged = 0 < row.first <= row.last
    return _fork(row, row.reason if ranged else f"in epoch {row.epoch}: {row.reason}", group, ranged)


def _fork(row: JournalRow, text: str, group: str = "", ranged: bool = True) -> Finding:
    return Finding(
        "fork", f"{KINDS['fork'][1]}: {text}", stream_of(row), group, epoch=row.epoch,
        first=row.first if ranged else None, last=row.last if ranged else None,
    )  # fmt: skip


def _fenced(producer: str, row: JournalRow) -> Finding:
    other = (row.detail or {}).get("epoch", "unknown")
    text = f"{KINDS['fork'][1]}: {producer} was fenced in epoch {row.epoch}, by the one in epoch {other}"
    return Finding("fork", text, epoch=row.epoch)
