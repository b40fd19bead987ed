"""``meanfield doctor``: versions, devices, precision, the compiler check, free memory."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from meanfield._checks import MeanfieldError
from meanfield._commands.flags import parse
from meanfield.records import versions

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Say what this installation computes with, and name what to mend. Exits with 2 if ill."""


def command(args: Sequence[str]) -> int:
    """Examine the installation; returns the exit code."""
    parse(DoctorOptions, args, prog="meanfield doctor")
    print("versions   " + ", ".join(f"{name} {value}" for name, value in versions().items()))
    ills = []
    try:
        import jax

        from meanfield import _runtime
    except Exception as error:  # a broken installation may fail in any way at import
        ills.append(f"jax does not import ({error}); run: pip install '{_requirement()}'")
    else:
        ills += _examine(jax, _runtime)
    print(f"memory     {_free_memory()}")
    for ill in ills:
        print(f"mend       {ill}")
    print("all is well" if not ills else f"{len(ills)} to mend")
    return 2 if ills else 0


def _requirement() -> str:
    from importlib import metadata

    needed = metadata.requires("meanfield") or []
    return next((line for line in needed if line.startswith("jax")), "jax")


def _examine(jax: Any, runtime: Any) -> list[str]:
    ills = []
    devices = jax.devices()
    print(f"devices    {len(devices)} x {devices[0].device_kind} ({devices[0].platform})")
    double = jax.config.jax_enable_x64
    how = "" if double else "; meanfield.use_double() switches to float64"
    print(f"precision  {'float64' if double else 'float32'} by default{how}")
    try:
        runtime.guard_runtime()
    except MeanfieldError as error:
        ills.append(str(error))
    for precision, bound in TOLERANCE.items():
        with jax.enable_x64(precision == "float64"):
            gap = runtime.compiled_kernel_error()
        sound = gap <= bound
        print(
            f"XLA check  {precision}: jit against numpy {gap:.1e}, {'sound' if sound else 'WRONG'}"
        )
        if not sound:
            ills.append(
                f"compiled code is wrong in {precision} (jax-ml/jax#39103 or alike);"
                f" run: pip install '{runtime.REQUIREMENT}'"
            )
    return ills


def _free_memory() -> str:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return "not known on this system"
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free, {os.cpu_count()} cores"
