"""The command line: ``meanfield COMMAND ...`` or ``python -m meanfield COMMAND ...``.

Exit codes: 0 done; 1 a claim does not hold; 2 bad input, or a run that cannot go on: one line that
says what was given, what is expected, and the mend; 3 undecided; 130 interrupted, resumable.
"""

import contextlib
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

try:
    import meanfield
    from meanfield._checks import MeanfieldError
except KeyboardInterrupt:  # Ctrl-C while numpy is being imported
    sys.exit(130)

# command: (module in meanfield._commands, what it does)
COMMANDS = {
    "doctor": ("doctor", "versions, devices, precision, the XLA check, free memory"),
    "list": ("listing", "experiments and figures, a line each with claim and cost"),
    "run": ("run", "run an experiment: NAME, all, or a file of your own"),
    "flow": ("flow", "push a cloud of tokens through, store path and picture"),
    "gradient": ("gradient", "risk, momenta and conditional Wasserstein gradient of a problem"),
    "ntk": ("ntk", "is the tangent kernel of token laws or clouds positive; prove it"),
    "figures": ("figures", "draw the figures from stored results"),
    "report": ("report", "a folder of results as one HTML page: tables, pictures, commands"),
}


def usage() -> str:
    """The text of ``meanfield --help``."""
    lines = [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            f"meanfield {meanfield.__version__}: a mean-field simulator for transformers",
            "",
            "usage: meanfield COMMAND [flags]; meanfield COMMAND --help shows its flags",
            "",
            *lines,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Nothing that a user gives ends in a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `meanfield list >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold what no encoding knows
    name = args[0] if args else ""
    try:
        code = _dispatch(args)
        with contextlib.suppress(BrokenPipeError):  # the verdict's code stands
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except BrokenPipeError:  # `meanfield list | head` is no error
        return 0
    except MeanfieldError as error:
        _say(f"meanfield {name}: {error}")
        return 2
    except Exception as error:
        if isinstance(error, MemoryError | OSError) or "RESOURCE_EXHAUSTED" in str(error):
            text = " ".join(str(error).split())[:200] or "out of memory"
            mend = "expected memory and files that can be used; free some, or ask for less"
            _say(f"meanfield {name}: {text}; {mend}")
            return 2
        # A defect, here or in an experiment's own file: its author needs all of it.
        _say(traceback.format_exc() + f"meanfield {name}: stopped by {type(error).__name__}")
        return 2
    finally:
        _give_up_what_cannot_be_written()


def _dispatch(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"meanfield {meanfield.__version__}")
        return 0
    if args[0] not in COMMANDS:
        raise MeanfieldError(
            f"the command {args[0]!r}", f"one of {', '.join(COMMANDS)}", "see: meanfield --help"
        )
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:  # `python -W default -m meanfield` shows them all
                warnings.simplefilter("ignore", RuntimeWarning)  # what overflows is refused by name
            module = importlib.import_module(f"meanfield._commands.{COMMANDS[args[0]][0]}")
            return module.command(args[1:])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed as well
        print(text, file=sys.stderr)


def _give_up_what_cannot_be_written() -> None:
    """Drop output that a full disk or a closed pipe refuses, or Python fails on it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run_file(file: str | Path) -> None:
    """Run an experiment's own file as ``meanfield run FILE`` would, with this process's flags."""
    sys.exit(main(["run", str(file), *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
