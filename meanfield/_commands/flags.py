"""Flags from frozen dataclasses, and progress on a terminal.

tyro builds the parser and the help text; what it has to say about a wrong flag is brought to the
one line that every bad input gets.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import tyro
from tqdm import tqdm

from meanfield._checks import MeanfieldError

SchemeName = Literal["euler", "heun", "rk4", "adaptive"]
_T = TypeVar("_T")


def parse(kind: Any, args: Sequence[str], *, prog: str, default: Any = None) -> Any:
    """``args`` as an instance of the dataclass ``kind``; ``--help`` prints and exits with 0.

    Raises: `MeanfieldError` on anything that the parser refuses.
    """
    said = io.StringIO()
    options = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said), _wide():
            return tyro.cli(
                kind,
                args=list(args),
                prog=prog,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
                **options,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        cause: BaseException | None = stop
        while cause is not None:
            if isinstance(cause, MeanfieldError):  # the dataclass's own check
                raise cause from None
            cause = cause.__context__
        raise MeanfieldError(
            _first_sentence(said.getvalue()), "the flags of this command", f"see: {prog} --help"
        ) from None


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Let tyro put an error on one line where nobody reads it in a box."""
    before = os.environ.get("COLUMNS")
    if not sys.stdout.isatty():
        os.environ["COLUMNS"] = "100"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before


def _first_sentence(box: str) -> str:
    """The message inside tyro's box: the lines between its title and the first rule."""
    message: list[str] = []
    for line in box.splitlines():
        text = line.strip("│ \t")
        if text.startswith("──") and message:
            break
        if text and text[0] not in "╭╰─":
            message.append(text)
    return " ".join(message).rstrip(".") or "wrong flags"


class Progress:
    """What an experiment says while it runs: bars and notes on a terminal, nothing elsewhere."""

    def __init__(self, *, visible: bool | None = None):
        self.visible = sys.stderr.isatty() if visible is None else visible

    def task(
        self, iterable: Iterable[_T], label: str = "", *, total: int | None = None
    ) -> Iterable[_T]:
        """Iterate with a bar that tells the time left and disappears at the end."""
        off = not self.visible
        return tqdm(iterable, desc=label or None, total=total, leave=False, disable=off)

    def __call__(self, iterable: Iterable[_T], label: str = "") -> Iterable[_T]:
        """The same as `task`: a progress can be passed where a plain function is expected."""
        return self.task(iterable, label)

    def note(self, text: str) -> None:
        """A line above the bars."""
        if self.visible:
            tqdm.write(text, file=sys.stderr)


def scheme_named(name: SchemeName) -> Any:
    """The depth scheme of a flag."""
    from meanfield import flow

    schemes = {
        "euler": flow.Euler,
        "heun": flow.Heun,
        "rk4": flow.RungeKutta4,
        "adaptive": flow.Adaptive,
    }
    return schemes[name]()
