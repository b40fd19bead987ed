"""What a sound manifest holds."""

import math
from typing import Any

from meanfield._checks import MeanfieldError, require
from meanfield.records._claims import CONSISTENT, INCONSISTENT, UNDECIDED, Claim
from meanfield.records._plain import from_json, to_json

STATUSES = ("running", "interrupted", "failed", "finished")
_DEEPEST = 100  # levels of dicts and lists, far below what Python's stack can follow


def is_manifest(found: Any) -> bool:
    """True if nothing in it can surprise its readers: kinds, claims, depth, size of numbers."""
    expected = {
        "name": str,
        "status": str,
        "configuration": dict,
        "seeds": dict,
        "started": str,
        "claims": list,
    }
    if not isinstance(found, dict) or _is_deep(found):
        return False
    if not all(isinstance(found.get(key), kind) for key, kind in expected.items()):
        return False
    seconds = found.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    try:
        to_json(found)  # as it is copied whenever it is read
        for claim in found["claims"]:
            read_claim(claim)
        return 0 <= float(seconds) < math.inf and found["status"] in STATUSES
    except (ValueError, OverflowError, RecursionError):  # of digits without end, for instance
        return False


def read_claim(entry: Any) -> Claim:
    """A claim from its JSON. Raises: `MeanfieldError` on anything but what `to_plain` makes."""
    text = f"the claim {entry!r:.60}"
    kinds = "quantity, expected, measured, interval (two numbers or null) and verdict"
    mend = "store the claims of the run again"
    require(
        isinstance(entry, dict)
        and isinstance(entry.get("quantity"), str)
        and {"expected", "measured", "interval"} <= set(entry)
        and entry.get("verdict") in (CONSISTENT, INCONSISTENT, UNDECIDED),
        text,
        kinds,
        mend,
    )
    try:
        expected, measured = (from_json(entry[key]) for key in ("expected", "measured"))
        ends = None if entry["interval"] is None else [from_json(end) for end in entry["interval"]]
    except (OverflowError, TypeError):
        raise MeanfieldError(text, kinds, mend) from None
    sound = ends is None or (len(ends) == 2 and all(isinstance(end, float) for end in ends))
    sound = sound and (ends is None or isinstance(entry["interval"], list))
    sound = sound and all(isinstance(value, float | str) for value in (expected, measured))
    require(sound, text, kinds, mend)
    interval = None if ends is None else (ends[0], ends[1])
    return Claim(entry["quantity"], expected, measured, interval, entry["verdict"])


def _is_deep(found: Any) -> bool:
    layer, depth = [found], 0
    while layer and depth <= _DEEPEST:
        inner = (v.values() if isinstance(v, dict) else v for v in layer)
        layer = [v for values in inner for v in values if isinstance(v, dict | list)]
        depth += 1
    return bool(layer)
