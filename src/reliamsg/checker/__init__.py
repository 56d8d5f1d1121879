"""A checker in plain Python: from clients' journals and applications' logs to a verdict.

It reads evidence only: :func:`check_directory` for a directory of outboxes, inboxes and logs, :func:`check` for
journals that were already read, :class:`AppLog` for applications that keep their own log.
"""

from reliamsg.checker.applog import ApplicationLog, AppLog, AppRecord, read_applog, sha256
from reliamsg.checker.journals import Chain, find_journals, read_chain
from reliamsg.checker.report import Counts, Finding, Report, SiteCounts
from reliamsg.checker.run import Expect, check, check_directory
from reliamsg.trust import Trust

__all__ = [
    "AppLog",
    "AppRecord",
    "ApplicationLog",
    "Chain",
    "Counts",
    "Expect",
    "Finding",
    "Report",
    "SiteCounts",
    "Trust",
    "check",
    "check_directory",
    "find_journals",
    "read_applog",
    "read_chain",
    "sha256",
]
