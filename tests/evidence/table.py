"""The table of ``docs/reference/evidence.md``: figures of one state of the sources, which it names."""

from __future__ import annotations

from collections.abc import Sequence

from tests.evidence.state import Record, State

__all__ = ["PAGE", "NotComplete", "problems_of", "table", "written"]

PAGE = "docs/reference/evidence.md"
BEGIN = "<!-- evidence: written by `python -m tests.evidence.run --write` -->"
END = "<!-- evidence: end -->"


class NotComplete(Exception):
    """There is no table that could be quoted."""


def problems_of(state: State) -> list[str]:
    """What all chunks of a part together should have met and did not."""
    return state.part.lacking([record.data for record in _sound(state)])


def _sound(state: State) -> list[Record]:
    """What ended, and could be read."""
    return [record for record in state.records().values() if not record.data.get("unreadable")]


def table(states: Sequence[State], incomplete: bool = False) -> str:
    """Markdown: a row for each part. Raises :class:`NotComplete` where something remains, failed, or was run with a
    work tree that differed from its commit; unless `incomplete`: then each row says so itself."""
    lines = ["| what | done | result | sources | commit | last run |", "|---|---|---|---|---|---|"]
    faults = []
    for state in states:
        part, records = state.part, list(state.records().values())
        failed = [record.chunk for record in records if not record.ok]
        remaining = len(part.chunks) - len(records)
        changed = any("with changes" in record.commit for record in records)
        lacking = [] if remaining else problems_of(state)
        done = "all" if not remaining else f"**incomplete: {len(records)} of {len(part.chunks)} chunks**"
        sound = [record.data for record in _sound(state)]
        result = part.summary(sound) if sound else "none yet"
        result += f"; **failed: {', '.join(failed)}**" if failed else ""
        result += f"; **never met: {', '.join(lacking)}**" if lacking else ""
        commits = ", ".join(dict.fromkeys(f"`{record.commit}`" for record in records))
        last = max((record.ended for record in records), default="")[:10]
        lines.append(f"| {part.title} | {done} | {result} | `{state.hash}` | {commits} | {last} |")
        for fault, words in (
            (remaining, f"{remaining} chunks of {part.name} remain"),
            (failed, f"{part.name} failed: {', '.join(failed)}"),
            (lacking, f"{part.name} never met {', '.join(lacking)}"),
            (changed, f"{part.name} was run with changes that are in no commit"),
        ):
            if fault:
                faults.append(words)
    if faults and not incomplete:
        raise NotComplete("; ".join(faults))
    return "\n".join(lines)


def written(page: str, rows: str) -> str:
    """The page with this table in its place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NotComplete(f"the page has no place for it: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{after}"
