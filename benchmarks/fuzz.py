"""Damaged and hostile inputs: each goes through the reader that a command uses, in this process.

    python benchmarks/fuzz.py --inputs 20000 --seed 1 [--only recipe,idx] [--faults FOLDER]

`tests/hostile_readers.py` makes the inputs. A reader may return a result, or raise UsageError or RunError with one
sentence. Anything else is a fault: another exception, more than 5 s of processor time or 60 s in all, 500 MB more
memory, or a result that contradicts itself. Faults are stored in --faults and listed. The exit code is 1 if there are
any.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hostile_readers import READERS, Contradiction, Reader
from paceline.errors import RunError, UsageError
from paceline.text import plain_text, shortened

LONGEST_CPU_S, LONGEST_S = 5.0, 60.0  # processor time, which other programs do not change, and wall time
MOST_BYTES = 500 << 20
MOST_LETTERS = 2000  # of a sentence, as the command prints it


class Slow(BaseException):
    """Raised in a reader that takes longer than LONGEST_CPU_S or LONGEST_S."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise Slow after the time limits, and Contradiction if the peak of memory grew by more than MOST_BYTES."""

    def stop(*_: object) -> None:
        raise Slow("took too long")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    timers = ((signal.ITIMER_REAL, signal.SIGALRM, LONGEST_S), (signal.ITIMER_PROF, signal.SIGPROF, LONGEST_CPU_S))
    for timer, number, seconds in timers:
        signal.signal(number, stop)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, number, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, signal.SIG_DFL)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grown > MOST_BYTES:
        raise Contradiction(f"took {grown >> 20} MB of memory")


def outcome_of(reader: Reader, data: bytes, chance: random.Random) -> str:
    """Return `read`, `refused` or a description of the fault."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with limited():
                reader.read(data, Path(folder), chance)
            return "read"
        except (UsageError, RunError) as error:
            sentence = shortened(plain_text(str(error))).strip()
            if not sentence or len(sentence) > MOST_LETTERS:
                return f"refused with {len(sentence)} letters: {sentence[:80]!r}"
            return "refused"
        except BaseException as error:  # any other exception is a fault
            if isinstance(error, KeyboardInterrupt):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:150]}"


def fuzz(name: str, count: int, seed: int, faults: Path | None) -> tuple[dict[str, int], dict[str, int]]:
    """Try `count` inputs of one kind. Return how many were read and refused, and how often each fault occurred."""
    counts, found = {"read": 0, "refused": 0}, dict[str, int]()
    for number in range(count):
        chance = random.Random(f"{name} {seed} {number}")
        data = READERS[name].make(chance)
        outcome = outcome_of(READERS[name], data, chance)
        if outcome in counts:
            counts[outcome] += 1
            continue
        found[outcome] = found.get(outcome, 0) + 1
        if faults is not None and found[outcome] == 1:
            faults.mkdir(parents=True, exist_ok=True)
            (faults / f"{name}-{seed}-{number}.input").write_bytes(data)
            (faults / f"{name}-{seed}-{number}.txt").write_text(outcome + "\n", encoding="utf-8", errors="replace")
    return counts, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(READERS))
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"))
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    print(f"{'input':10} {'read':>6} {'refused':>8} {'faults':>7} {'seconds':>8}")
    total = 0
    for index, name in enumerate(names):
        count = arguments.inputs // len(names) + (index < arguments.inputs % len(names))
        started = time.monotonic()
        counts, found = fuzz(name, count, arguments.seed, arguments.faults)
        seconds = time.monotonic() - started
        print(f"{name:10} {counts['read']:6} {counts['refused']:8} {sum(found.values()):7} {seconds:8.1f}", flush=True)
        for fault, times in found.items():
            print(f"  {times} x {fault}")
        total += sum(found.values())
    print(f"{arguments.inputs} inputs, {total} faults")
    sys.exit(bool(total))


if __name__ == "__main__":
    main()
