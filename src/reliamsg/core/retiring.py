"""Which streams need not be in memory: those of which everything is settled, committed and told.

A stream is *retired* in two steps. :func:`retire` has it committed as after a clean stop, with an exact high-water
mark; when that is on disk and it is still idle, the caller forgets it, and restores it when something comes for it.
"""

from __future__ import annotations

from reliamsg.core.stream import StreamState

__all__ = ["is_idle"]


def is_idle(state: StreamState) -> bool:
    """Whether everything of the stream is settled, and nothing is waited for. Whether the group is about to join it is
    another question: :func:`~reliamsg.core.joining.joins_soon`."""
    known = state.current
    if not state.stream.producer or state.waiting or state.draining or state.finishing:
        return False
    if known is None:  # only its producer's word is known, which will be said again
        return (
            not state.live
            and state.takeover.report is None
            and not state.history_changed
            and not state.saving_history
        )
    if len(state.live) != 1 or state.gaps.clock.target is not None or state.asking is not None:
        return False
    if state.redelivery.halted or state.redelivery.any_pending:
        return False
    if state.history_changed or state.saving_history or state.gaps.any_passing:
        return False
    if not (known.held.empty and known.settled.empty and known.retry.empty and known.asked.empty):
        return False
    if known.highest >= known.position or known.cursor != known.position:
        return False
    report, remembered = state.takeover.report, state.takeover.remembered
    if report is not None and known.epoch < report.entered[0]:
        return False
    if remembered is not None and known.epoch < remembered.epoch:
        return False
    return state.heard is None or not state.heard.waiting
