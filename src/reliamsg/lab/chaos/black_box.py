"""A judge that knows nothing about the product. It reads the applications' own logs (their format is described in
:mod:`reliamsg.lab.chaos.black_box_app`), and imports nothing from this project.

It detects losses, wrong order, duplicates without the flag, changed contents, and identities that were used twice. It
is short enough to be verified by reading.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Line", "judge", "losses", "read_log"]

Line = dict[str, Any]


def read_log(path: Path) -> list[Line]:
    """The lines of a log. Incomplete lines, left by killed processes, are skipped."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def judge(published: dict[str, list[Line]], handled: dict[str, list[Line]]) -> Counter[str]:
    """How many messages each kind of error affected; :func:`losses` detects losses. `published`: log lines by producer;
    `handled`: by group, in the order in which they were written."""
    wrong: Counter[str] = Counter()
    sums = {(name, at["topic"], at["n"]): at["sum"]
            for name, log in published.items() for at in log if at["op"] == "call"}  # fmt: skip
    owner: dict[tuple[Any, ...], tuple[str, str, int]] = {}  # identity -> the only message that may have it
    for name, log in published.items():
        for at in log:
            if at["op"] == "returned":
                message = (name, at["topic"], at["n"])
                wrong["identity reused"] += owner.setdefault(tuple(at["id"]), message) != message
    for log in handled.values():
        seen: set[tuple[str, str, int]] = set()
        highest: Counter[tuple[Any, ...]] = Counter()  # by stream, and by stream and life of the process
        for at in log:
            if at["op"] != "got" or at["replayed"]:
                continue
            stream, message = (at["producer"], at["topic"]), (at["producer"], at["topic"], at["n"])
            life = (*stream, at["life"])
            again = message in seen and at["redelivered"]
            wrong["never published"] += message not in sums
            wrong["changed"] += sums.get(message, at["sum"]) != at["sum"]
            wrong["identity reused"] += owner.setdefault(tuple(at["id"]), message) != message
            wrong["duplicate without the flag"] += message in seen and not at["redelivered"]
            if not again:
                expected = highest[life] if at["redelivered"] else max(highest[life], highest[stream])
                wrong["out of order"] += message not in seen and at["n"] <= expected
            seen.add(message)
            highest[life] = max(highest[life], at["n"])
            highest[stream] = max(highest[stream], at["n"])
    return +wrong


def losses(
    published: dict[str, list[Line]], log: Iterable[Line], latest: bool = False
) -> tuple[set[tuple[str, str, int]], Counter[str]]:
    """The messages for which publish() returned and that a group's handlers did not receive, except those of which the
    application was told; and how many it was told of in each way (``gap``, ``before``, ``dead``: the lines of the log).
    `latest`: the group wanted nothing before the first message that it received from each stream."""
    got, gaps, first = set(), [], dict[tuple[str, str], int]()
    for at in log:
        if at["op"] == "got":
            got.add((at["producer"], at["topic"], at["n"]))
            first.setdefault((at["producer"], at["topic"]), at["n"])
        elif at["op"] in ("gap", "before", "dead"):
            gaps.append(at)
    lost, declared = set(), Counter[str]()
    for name, own in published.items():
        owed = {(at["topic"], at["n"]): at["id"] for at in own if at["op"] == "returned"}
        for at in own:
            if at["op"] == "removed":
                owed.pop((at["topic"], at["n"]), None)
        for (topic, n), (_, epoch, _, _, seq) in owed.items():
            if (name, topic, n) in got or (latest and n < first.get((name, topic), 0)):
                continue
            told = {
                gap["op"]
                for gap in gaps
                if (gap["producer"], gap["topic"], gap["epoch"]) == (name, topic, epoch)
                and gap["first"] <= seq <= (seq if gap["last"] is None else gap["last"])
            }
            declared.update(told)
            if not told:
                lost.add((name, topic, n))
    return lost, declared
