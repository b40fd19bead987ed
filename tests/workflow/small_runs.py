"""Experiments at toy size, run once for a module, and again with some of their cells altered."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import meanfield as mf
from meanfield._commands import catalogue
from meanfield._commands.flags import Progress
from meanfield._commands.summary import Summary
from meanfield.records import RunDirectory

WITHOUT_JAX = """
import sys
for name in ("jax", "jaxlib", "equinox", "diffrax"):
    sys.modules[name] = None
from meanfield.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

QUIET = Progress(visible=False)


def states_headlines(caption: str, run: RunDirectory) -> bool:
    """True if a caption states the run's headlines and no other claim."""
    return [c for c in run.claims if c.sentence() in caption] == Summary.of(run).headlines()


class SmallRuns:
    """Each experiment's module, run directory and claims by quantity; run when first asked for.

    Args:
        folder: results lie below it.
        small: parameters by experiment.
        prepare: told the name, the module and the new run directory before the run.
    """

    def __init__(
        self,
        folder: Path,
        small: Mapping[str, Mapping[str, Any]],
        prepare: Callable[[str, Any, RunDirectory], None] | None = None,
    ):
        self.folder, self.small, self.prepare = folder, small, prepare
        self.kept: dict[str, Any] = {}

    def __call__(self, name: str) -> tuple[Any, RunDirectory, dict[str, mf.Claim]]:
        if name not in self.kept:
            module: Any = catalogue.load(
                catalogue.locate("experiments", name), ("Parameters", "run")
            )
            parameters = module.Parameters(**self.small[name])
            directory = RunDirectory.create(
                self.folder / "results" / name, name=name, configuration={"parameters": parameters}
            )
            if self.prepare is not None:
                self.prepare(name, module, directory)
            claims = module.run(parameters, directory, QUIET)
            directory.finish(claims)
            self.kept[name] = module, directory, {claim.quantity: claim for claim in claims}
        return self.kept[name]

    def again(self, name: str, folder: Path, spoil=None, **changes) -> list[mf.Claim]:
        """The claims of the same cells, some of them altered, under other parameters."""
        module, directory, _ = self(name)
        other = RunDirectory.create(folder / "again", name=name, configuration={})
        for cell in (directory.path / "cells").iterdir():
            key = cell.name.removesuffix(".npz")
            with np.load(cell) as stored:
                arrays = dict(stored)
            arrays = spoil(key, arrays) if spoil else arrays
            other.cached(key, lambda: arrays)  # noqa: B023 - used now
        parameters = dataclasses.replace(module.Parameters(**self.small[name]), **changes)
        return module.run(parameters, other, QUIET)
