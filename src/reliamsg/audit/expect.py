"""The expectations and rules of an audit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.trust import Trust

__all__ = ["Expect", "parse_expect"]


@dataclass(frozen=True)
class Expect:
    """The clients that must have a journal, and the rules by which a run is judged."""

    producers: tuple[str, ...] = ()
    """Producers that must have a journal, in addition to those that journals name."""
    groups: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """By topic, groups that must have a journal, in addition to those that journals name."""
    gap_timeout: float | None = None
    """In seconds; overrides the gap timeout in the journals of groups."""
    tolerance: float = 1.0
    """The tolerance for the clock of an expired gap, in seconds."""
    drained: bool = False
    """The run is over: every client was closed, and everything had time to arrive. Confirmed, undelivered messages are
    lost, even at the end of their stream, and every message counts."""
    until_us: int | None = None
    """Account for messages enqueued by then, in µs since 1970 by each client's clock, and require evidence up to then.
    With neither this nor `drained`, the audit finds the time through which everything is complete."""
    retired: tuple[str, ...] = ()
    """Clients that will never write again, each as ``[ROLE/]NAME@SEGMENT``: the last segment of its journal, which has
    to end with its close."""
    max_skew: float | None = None
    """Seconds that a client's clock may be ahead of, or behind, another one's; None: no limit."""
    now_us: int | None = None
    """This machine's clock, in µs since 1970, beyond which nothing is proven; None: as it is."""
    trust: Trust | None = None
    """By which every segment and head must be signed by its client; None: signatures are not checked."""
    checkpoint_keys: KeyRing | None = None
    """Keys of which one must have signed each checkpoint; None: signatures of checkpoints are not checked."""
    state_keys: KeyRing | None = None
    """Keys of which one must have signed the state, which their key for signing signs again; None: it is not signed."""

    @property
    def all_counts(self) -> bool:
        """Whether any open question makes the verdict ``unknown``, rather than being about later messages only."""
        return self.drained or self.until_us is not None


def parse_expect(words: Iterable[str], **rules: Any) -> Expect:
    """Parse ``producer=NAME``, ``group=NAME:TOPIC`` and names of JSON files (``producers``, ``groups``).

    `rules` are other fields of :class:`Expect`. Raises :class:`ConfigError`.
    """
    producers: list[str] = []
    groups: dict[str, list[str]] = {}
    for word in words:
        kind, _, name = word.partition("=")
        if kind == "producer" and name:
            producers.append(name)
        elif kind == "group":
            group, _, topic = name.partition(":")
            if not group or not topic:
                raise ConfigError(f"--expect {word}: use group=NAME:TOPIC")
            groups.setdefault(topic, []).append(group)
        elif word.endswith(".json"):
            _take_file(word, producers, groups)
        else:
            raise ConfigError(f"--expect {word}: neither producer=NAME, group=NAME:TOPIC nor a .json file")
    return Expect(tuple(producers), groups, **rules)


def _take_file(path: str, producers: list[str], groups: dict[str, list[str]]) -> None:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--expect {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--expect {path}: not JSON: {error}") from None
    if not isinstance(found, dict) or not found.keys() <= {"producers", "groups"}:
        raise ConfigError(f'--expect {path}: expected an object with "producers" and "groups"')
    listed, by_topic = found.get("producers", []), found.get("groups", {})
    if not _names(listed) or not isinstance(by_topic, dict) or not all(map(_names, by_topic.values())):
        raise ConfigError(
            f'--expect {path}: "producers" must be a list of names, "groups" an object with a list for each topic'
        )
    producers += listed
    for topic, names in by_topic.items():
        groups.setdefault(topic, []).extend(names)


def _names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)
