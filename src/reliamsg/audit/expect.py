"""What the audit is told besides the journals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliamsg.errors import ConfigError

__all__ = ["Expect", "parse_expect"]


@dataclass(frozen=True)
class Expect:
    """Who must have left a journal, and by which rules the run is judged."""

    producers: tuple[str, ...] = ()
    """Producers that must have left a journal, beyond those that the journals name."""
    groups: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """For each topic, groups that must have left a journal, likewise."""
    gap_timeout: float | None = None
    """Seconds; instead of what the journals of groups say."""
    tolerance: float = 1.0
    """Seconds by which an expired gap may differ from the gap timeout."""
    drained: bool = True
    """The run is over: what is confirmed and undelivered now is lost, if its group's journal was closed."""
    until_us: int | None = None
    """µs since 1970, each client by its own clock: the account is about what was enqueued by then. None: all."""


def parse_expect(words: Iterable[str], **rules: Any) -> Expect:
    """Read ``producer=NAME``, ``group=NAME:TOPIC`` and names of JSON files (``producers``, ``groups``).

    `rules` are further fields of :class:`Expect`. Raises :class:`ConfigError`.
    """
    producers: list[str] = []
    groups: dict[str, list[str]] = {}
    for word in words:
        what, _, name = word.partition("=")
        if what == "producer" and name:
            producers.append(name)
        elif what == "group":
            group, _, topic = name.partition(":")
            if not group or not topic:
                raise ConfigError(f"--expect {word}: write group=NAME:TOPIC")
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
        raise ConfigError(f'--expect {path}: an object with "producers" and "groups" is expected')
    listed, by_topic = found.get("producers", []), found.get("groups", {})
    if not _names(listed) or not isinstance(by_topic, dict) or not all(map(_names, by_topic.values())):
        raise ConfigError(f'--expect {path}: "producers" is a list of names, "groups" one for each topic')
    producers += listed
    for topic, names in by_topic.items():
        groups.setdefault(topic, []).extend(names)


def _names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)
