"""Finding experiments and figures, in a checkout or in an installed wheel.

Listing reads the files' constants without running them, so that it is fast and needs no jax.
"""

import ast
import dataclasses
import functools
import importlib.util
import re
import sys
import tomllib
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import meanfield
from meanfield._checks import MeanfieldError, require


def home(kind: str) -> Path:
    """The folder ``experiments`` or ``figures``: beside the package, or inside a wheel."""
    package = Path(meanfield.__file__).resolve().parent
    is_checkout = (package.parent / "pyproject.toml").exists()
    return package.parent / kind if is_checkout else package / "_bundled" / kind


def names(kind: str) -> list[str]:
    """Names of all experiments or figures: their files' stems."""
    return [path.stem for path in sorted(home(kind).glob("*.py")) if _is(kind, path)]


def find(kind: str, name: str) -> Path | None:
    """The file of an experiment or a figure of that name, whatever the name is; None without."""
    found = [path for path in home(kind).glob("*.py") if path.stem == name and _is(kind, path)]
    return found[0] if found else None


def _is(kind: str, path: Path) -> bool:
    return {"experiments": "run", "figures": "draw"}[kind] in _functions(path)


def _tree(path: Path) -> ast.Module:
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise MeanfieldError(
            f"{path} cannot be read ({error})", "a Python file", "mend that file"
        ) from None


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _functions(path: Path) -> set[str]:
    return {node.name for node in _tree(path).body if isinstance(node, ast.FunctionDef)}


def constants(path: Path) -> dict[str, Any]:
    """A file's docstring, its title, and the literal constants at the top (CLAIM, COST, ...)."""
    tree = _tree(path)
    text = ast.get_docstring(tree) or ""
    found: dict[str, Any] = {"docstring": text, "title": text.split("\n")[0]}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def defaults(path: Path) -> dict[str, Any]:
    """The fields of a file's ``Parameters`` and their defaults, None where that is no literal."""
    found = {}
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == "Parameters":
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    try:
                        value = ast.literal_eval(field.value) if field.value else None
                    except ValueError:
                        value = None
                    found[field.target.id] = value
    return found


def nominal_seconds(path: Path, preset: str | None) -> float | None:
    """Seconds on one CPU core that an experiment's COST states for a preset; None without."""
    cost = constants(path).get("COST")
    pattern = rf"\b{re.escape(preset or '')} (\d+(?:\.\d+)?) (s|min|h)\b"
    found = re.search(pattern, cost) if isinstance(cost, str) and preset else None
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else None


def locate(kind: str, name: str) -> Path:
    """The file of an experiment or a figure, by name or by the path of a ``.py`` file.

    Raises: `MeanfieldError` if there is none.
    """
    if name.endswith(".py"):
        path = Path(name)
        require(path.is_file(), f"{name} does not exist", "a Python file", "check the path")
        return path.resolve()
    known = names(kind)
    require(
        name in known,
        f"no {kind.removesuffix('s')} is named {name!r}",
        f"one of {', '.join(known)}, or the path of a .py file",
        "see: meanfield list",
    )
    return home(kind) / f"{name}.py"


def load(path: Path, needed: tuple[str, ...]) -> ModuleType:
    """Import an experiment's or a figure's file.

    Raises: `MeanfieldError` if it lacks one of the ``needed`` names.
    """
    module_name = f"_meanfield_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # true of every .py file, and so is the next
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    missing = [name for name in needed if not hasattr(module, name)]
    require(
        not missing,
        f"{path} defines no {' and no '.join(missing)}",
        f"{', '.join(needed)}",
        "start from experiments/template.py",
    )
    return module


def preset_overrides(path: Path, preset: str | None) -> dict[str, Any]:
    """The table of the experiment ``path`` in its folder's ``presets/PRESET.toml``."""
    if preset is None:
        return {}
    file = path.parent / "presets" / f"{preset}.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MeanfieldError(
            f"there is no {file}", "a preset file beside the experiment", "run without --preset"
        ) from None
    except (OSError, ValueError) as error:
        raise MeanfieldError(f"{file} is damaged ({error})", "a TOML file", "mend it") from None
    require(
        isinstance(table.get(path.stem), dict),
        f"{file} holds no table [{path.stem}]",
        "one table for each experiment",
        "add it, or run without --preset",
    )
    return table[path.stem]


def build_parameters(kind: Any, values: Any, where: str, *, complete: bool = False) -> Any:
    """An instance of the experiment's ``Parameters`` from plain values (TOML or JSON).

    ``complete``: every field must be given, as in a manifest; a default may have changed since.
    Raises: `MeanfieldError` on unknown or missing names, values of another type than the field's,
    or those that the experiment refuses.
    """
    require(
        isinstance(values, dict),
        f"{where} holds {values!r:.60} for parameters",
        "a value for each of them, by name",
        "mend that file, or start a new run",
    )
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    require(
        not unknown,
        f"{where} sets {', '.join(unknown)}",
        f"only {', '.join(fields)}",
        "correct the name",
    )
    absent = [name for name in fields if name not in values] if complete else []
    require(
        not absent,
        f"{where} lacks {', '.join(absent)}",
        "a value for every parameter",
        "mend that file, or start a new run",
    )
    cast = {name: _cast(value, hints[name], f"{where}: {name}") for name, value in values.items()}
    try:
        return kind(**cast)
    except MeanfieldError as error:
        raise MeanfieldError(f"{where}: {error.given}", error.expected, error.mend) from None
    except TypeError as error:
        raise MeanfieldError(f"{where}: {error}", "a value for every field", "add it") from None


def _cast(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the type ``hint``: lists become tuples, integers floats, strings paths."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _cast(value, parts[0], where)
    if origin is typing.Literal and value in parts:
        return value
    if origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[-1:] == (Ellipsis,) else parts
        if len(kinds) == len(value):
            return tuple(_cast(v, k, where) for v, k in zip(value, kinds, strict=True))
    elif origin is not None and origin not in (tuple, typing.Literal):  # a union
        for part in parts:
            try:
                return _cast(value, part, where)
            except MeanfieldError:
                continue
    elif hint is type(None) and value is None:
        return None
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # "inf" and "nan" are strings in a manifest
        except (ValueError, OverflowError):
            pass
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif hint in (bool, int, str) and type(value) is hint:
        return value
    raise MeanfieldError(
        f"{where} is {value!r}", getattr(hint, "__name__", None) or str(hint), "correct the value"
    )
