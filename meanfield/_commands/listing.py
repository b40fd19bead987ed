"""``meanfield list``: experiments and figures, a line each with claim and cost."""

import dataclasses
from collections.abc import Sequence

from meanfield._commands import catalogue
from meanfield._commands.flags import parse


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """List the experiments (claim, cost) and the figures (what they show)."""


def command(args: Sequence[str]) -> int:
    """List them; returns the exit code."""
    parse(ListOptions, args, prog="meanfield list")
    for kind in ("experiments", "figures"):
        print(kind)
        names = catalogue.names(kind)
        for name in names:
            found = catalogue.constants(catalogue.home(kind) / f"{name}.py")
            text = found.get("CLAIM") or found["title"]
            if kind == "experiments":
                text += f" [{found.get('COST', 'cost not stated')}]"
            else:
                text += f" [reads {', '.join(found.get('EXPERIMENTS', ()))}]"
            print(f"  {name:<{max(map(len, names))}}  {' '.join(text.split())}")
    return 0
