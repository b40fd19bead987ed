"""What a sound manifest holds."""

import math
from typing import Any

from meanfield.records._claims import CONSISTENT, INCONSISTENT, UNDECIDED
from meanfield.records._plain import from_json

STATUSES = ("running", "interrupted", "failed", "finished")


def is_manifest(found: Any) -> bool:
    expected = {
        "name": str,
        "status": str,
        "configuration": dict,
        "seeds": dict,
        "started": str,
        "claims": list,
    }
    if not isinstance(found, dict):
        return False
    if not all(isinstance(found.get(key), kind) for key, kind in expected.items()):
        return False
    seconds = found.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    sound = 0 <= seconds < math.inf and found["status"] in STATUSES
    return sound and all(_is_claim(claim) for claim in found["claims"])


def _is_claim(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"expected", "measured", "interval"} <= set(entry):
        return False
    interval = entry["interval"]
    sound = interval is None or (isinstance(interval, list) and len(interval) == 2)
    ends = [from_json(end) for end in interval or ()] if sound else [None]
    sound = all(isinstance(end, float) for end in ends)
    sound = sound and all(isinstance(entry[k], int | float | str) for k in ("expected", "measured"))
    known = entry.get("verdict") in (CONSISTENT, INCONSISTENT, UNDECIDED)
    return sound and known and isinstance(entry.get("quantity"), str)
