"""Megabytes of real text through the command line and two mixed sites, one of which is killed on the way."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from reliamsg.checker import Expect, check_directory
from reliamsg.lab import Mosquitto, RabbitNode
from tests.children import run_child
from tests.options import Size
from tests.runs.collected import keep
from tests.runs.harness import assert_complete, wait_for

RELIAMSG = [sys.executable, "-m", "reliamsg"]


def changelogs(least: int) -> bytes:
    """Changelogs of installed Debian packages, at least this many bytes, ending in a newline."""
    text = b""
    for path in sorted(Path("/usr/share/doc").glob("*/changelog*.gz")):
        text += gzip.decompress(path.read_bytes())
        if len(text) >= least:
            break
    if len(text) < least:
        # A slim image has no changelogs; the standard library is real text as well.
        for path in sorted(Path(subprocess.__file__).parent.rglob("*.py")):
            text += path.read_bytes()
            if len(text) >= least:
                break
    return text[:least].rstrip(b"\n") + b"\n"


def test_output_equals_input(
    tmp_path: Path, rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto], size: Size
) -> None:
    text = changelogs(size(2_000_000, 8_000_000))
    source, output = tmp_path / "input.txt", tmp_path / "output.txt"
    source.write_bytes(text)
    dc1 = make_mosquitto(name="dc1")
    sites = ["--site", f"dc1={dc1.url}", "--site", f"dc2={rabbit.url}"]
    journal = ["--journal", str(tmp_path / "journals")]
    run_child([*RELIAMSG, "group", "create", "readers", "--topic", "changes", *sites], check=True)
    with output.open("wb") as out:
        reader = subprocess.Popen(
            [*RELIAMSG, "sub", "changes", "--group", "readers", "--inbox", tmp_path / "inbox.db",
             "--count", str(text.count(b"\n")), *journal, *sites], stdout=out,
        )  # fmt: skip
        writer = subprocess.Popen(
            [*RELIAMSG, "pub", "changes", "--producer", "files", "--outbox", tmp_path / "outbox.db",
             "--group", "readers", "--file", source, *journal, *sites],
        )  # fmt: skip
        try:
            half = wait_for(
                lambda: output.stat().st_size > len(text) // 10 and output.stat().st_size, 60, "text flows"
            )
            dc1.kill()
            assert half < len(text), "everything had passed before the fault"
            dc1.wipe()
            dc1.start()
            assert writer.wait(120) == 0
            assert reader.wait(120) == 0
        finally:
            writer.kill()
            reader.kill()
    assert output.read_bytes() == text
    assert_complete(check_directory(tmp_path, Expect(drained=True)))
    keep(tmp_path)
