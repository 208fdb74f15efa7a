"""Entry point of the command `paceline` and of `python -m paceline`. It handles signals before anything else."""

from __future__ import annotations

import sys

try:
    from paceline import interrupts
except KeyboardInterrupt:  # Python raises it for SIGINT alone
    sys.exit("paceline: interrupted")


def main() -> None:
    """Run the command in sys.argv, and exit with its code. A signal ends it with code 1 and one sentence."""
    try:
        interrupts.install()
        code = _run()
        interrupts.ignore_from_now_on()
    except KeyboardInterrupt:
        interrupts.ignore_from_now_on()
        sys.stderr.write(interrupts.SENTENCE)
        code = 1
    sys.exit(code)


def _run() -> int:
    from paceline import standard_streams

    output = standard_streams.tolerate_errors()
    from paceline.cli import main as run_command

    code = 0
    try:
        run_command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    reason = standard_streams.lost_output(output)
    if reason:
        sys.stderr.write(f"paceline: standard output cannot be written: {reason}\n")
    return code or int(bool(reason))


if __name__ == "__main__":
    main()
