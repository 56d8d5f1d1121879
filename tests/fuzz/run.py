"""Coverage-guided fuzzing of every target, with atheris: ``make fuzz``, or ``python -m tests.fuzz.run [TARGET...]``.

Each target runs in a separate process for ``FUZZ_SECONDS`` (60 by default), with the inputs that it found before
(``build/fuzz/corpus``), those from the encoders, and those that once revealed defects (``tests/fuzz/found``). An input
that makes a target raise is saved in ``build/fuzz/defects``; move it to ``tests/fuzz/found/TARGET`` with its fix, and
``make test`` checks it from then on. Exit code: 0, or 1 if anything was found.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
FOUND = Path(__file__).parent / "found"

MAX_INPUT_BYTES = 4096
MEMORY_MB = 1024
"""A target that uses more is stopped, and its input kept."""


def main(names: list[str]) -> int:
    """Fuzz those targets, or all, one after the other, and print a line for each."""
    from tests.fuzz.all import TARGETS

    seconds = int(os.environ.get("FUZZ_SECONDS", "60"))
    unknown = set(names) - set(TARGETS)
    if unknown:
        print(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}", file=sys.stderr
        )
        return 2
    print(f"{'target':<18}{'inputs':>12}{'covered':>9}{'corpus':>8}  result", flush=True)
    return max([_fuzz(name, seconds) for name in names or TARGETS])


def _fuzz(name: str, seconds: int) -> int:
    from tests.fuzz.all import TARGETS

    corpus, defects = BUILD / "corpus" / name, BUILD / "defects" / name
    corpus.mkdir(parents=True, exist_ok=True)
    defects.mkdir(parents=True, exist_ok=True)
    before = set(defects.iterdir())
    command = [
        sys.executable, "-m", "tests.fuzz.run", "--one", name, f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={TARGETS[name].slow_seconds}",
        f"-artifact_prefix={defects}/", "-print_final_stats=1", str(corpus),
    ]  # fmt: skip
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # libFuzzer exits without cleanup, so the target's temporary files are removed here.
    with tempfile.TemporaryDirectory(prefix="reliamsg-fuzz-", dir=memory) as scratch:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": scratch},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    said = done.stdout.decode(errors="replace")
    (BUILD / f"{name}.log").write_text(said)
    new = sorted(set(defects.iterdir()) - before)
    count = _last(r"stat::number_of_executed_units:\s*(\d+)", said)
    covered = _last(r"cov: (\d+)", said)
    result = "ok" if done.returncode == 0 and not new else f"DEFECT: see {BUILD / name}.log and {defects}"
    print(f"{name:<18}{count:>12}{covered:>9}{len(list(corpus.iterdir())):>8}  {result}", flush=True)
    return 0 if result == "ok" else 1


def _last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    return found[-1] if found else "-"


def one(name: str, options: list[str]) -> None:
    """Fuzz one target in this process, which exits with it."""
    import atheris  # installed by `make fuzz` alone

    with atheris.instrument_imports(include=["reliamsg"]):
        from tests.fuzz.all import TARGETS
    target = TARGETS[name]
    logging.disable(logging.CRITICAL)
    corpus = Path(options[-1])
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    for path in (FOUND / name).glob("*"):
        (corpus / f"found-{path.name}").write_bytes(path.read_bytes())
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
