"""Producers with two histories, as remarks without influence on the verdict.

An outbox that was restored from a backup, or copied, has two histories. If every message of both is accounted for, no
promise is broken, but operators should know.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import stream_of
from reliamsg.checker.report import KINDS, Finding
from reliamsg.store.journal import JournalRow

__all__ = ["find_forks"]


def find_forks(chains: Iterable[Chain]) -> list[Finding]:
    """A ``fork`` for each one that a group met, that made a producer move messages, or that fenced a producer.

    Rows with which two chains of one client begin count once.
    """
    found: dict[Finding, None] = {}
    for chain in chains:
        for row in chain.rows:
            if chain.role == "group" and row.kind == "conflict":
                found[_conflict(chain.client, row)] = None
            elif chain.role == "producer" and row.kind == "renumbered":
                new = (row.detail or {}).get("epoch")
                found[_fork(row, f"they have epoch {new} now")] = None
            elif chain.role == "producer" and row.kind == "fenced":
                found[_fenced(chain.client, row)] = None
    return list(found)


def _conflict(group: str, row: JournalRow) -> Finding:
    # An epoch that was only announced may have no message.
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
