"""``meanfield ntk``: is the tangent kernel of given token distributions positive, and why not."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from meanfield._checks import MeanfieldError, require
from meanfield._commands.flags import parse
from meanfield._commands.problems import require_writable
from meanfield._commands.runs import RESULTS, free_folder
from meanfield.records import to_json

CODE_OF_VERDICT = {"positive": 0, "not positive": 1, "undecided": 3}
CODE_OF_STATUS = {"certified": 0, "refused": 1, "undecided": 3}
SUFFIXES = (".npy", ".npz", ".csv")
LAWS = ("cube", "laplace", "gaussian", "gmm")  # before jax is there; `parse_law` reads the rest
PICTURES = (".png", ".pdf")
LARGEST_FACTOR = 2**27  # float64 numbers of F, 1 GiB: its SVD needs some copies
LARGEST_SIDE = 4096  # columns of F: a minute's SVD


@dataclasses.dataclass(frozen=True)
class NtkOptions:
    """Is the tangent kernel of these contexts positive, how positive, and which directions are not?

    LAW_OR_FILE, one or more: a law (cube:radius=1,dim=2[,center=0/0], laplace:cov=1/0.3/0.3/0.6,
    gaussian:mean=0/0,cov=..., gmm:theta=0.6/0.3,cov=..., gmm:FILE.npz) or a cloud (.npy, .npz or
    .csv; an array [N, n, d] gives N contexts). Contexts are numbered in this order, from 1.
    Exit codes: 0 positive, and certified where asked, or a certificate that holds; 1 not positive,
    a refused certificate, or one that does not hold; 2 bad input; 3 undecided; 130 interrupted.
    """

    contexts: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="LAW_OR_FILE ...")
    ] = ()
    """Laws and files of clouds."""
    queries: str = "shared:3"
    """own: each cloud's tokens; shared:K: K seeded queries for all; one: shared:1; or a file
    [K, d] that all share, or [N, K, d] with K of each context."""
    heads: int | None = None
    """M. Without: max(64, 2P/d) for P pairs. With --suggest: the most heads to consider."""
    scale: float | None = None
    """s: standard deviation of the Gaussian entries of A, also with --head-dim; where a law is
    finite near 0 only (Laplace), A is uniform in the ball of radius s; perceptron: of the entries
    of w. Without: such that scores are about 2, or 0.9 of the largest ball (our choice)."""
    head_dim: int | None = None
    """k: heads A = Q^T K of rank k; entries of A keep the variance s^2 (Laplace: Q and K uniform in
    balls of radius sqrt(s)). Without: full A."""
    seed: int = 0
    """Seed of heads and shared queries."""
    part: Literal["V", "A", "full"] | None = None
    """Part of the kernel; nullities are counted per coordinate. Without: V (perceptron: full)."""
    field: Literal["attention", "perceptron"] = "attention"
    """Velocity field: softmax attention, or a perceptron (clouds only; it sees no context)."""
    certify: bool = False
    """Prove it in ball arithmetic and store the certificate."""
    kind: Literal["positivity", "independence"] | None = None
    """What is proved: a lower bound of lambda_min of the V-part for these heads (positivity, the
    default), or that the contexts' cumulant generating functions are linearly independent."""
    modulo: Literal["affine", "constants", "quadratic"] | None = None
    """With --kind independence: modulo which functions. Without, what suffices for a positive
    kernel at shared queries: constants for one and the same query; else affine where every support
    is bounded (cubes, clouds), quadratic where one is not."""
    out: Path | None = None
    """The certificate's .json file; an existing one is replaced. Without: results/ntk, numbered
    if that is taken."""
    suggest: bool = False
    """Head scales and numbers of heads with lambda_min of the V-part, and the best of them."""
    picture: Path | None = None
    """Draw the spectrum, and null directions if there are any, to this .png or .pdf file."""
    verify: Path | None = None
    """Check this certificate again from scratch, instead of anything else."""
    json: bool = False
    """Print one JSON object and nothing else; an error stays a plain line on standard error."""


def command(args: Sequence[str]) -> int:
    """Check, certify or verify; returns the exit code."""
    options: NtkOptions = parse(NtkOptions, args, prog="meanfield ntk")
    _check_options(options)
    if options.verify is not None:
        return _verify(options.verify, as_json=options.json)
    try:
        return _check(options)
    except MeanfieldError as error:
        raise _for_the_command_line(error) from None


def _check(options: NtkOptions) -> int:
    """Report, and what else is asked for; returns the exit code."""
    import meanfield as mf
    from meanfield import ntk

    mf.use_double()
    contexts = _contexts(options.contexts)
    queries = _queries(options.queries, contexts)
    pairs = ntk.pairs_of(contexts, queries, seed=options.seed)
    _require_memory(pairs, options)
    report = _report(pairs, options)
    certificate, path = _certify(report, options) if options.certify else (None, None)
    report = _proved(report, certificate)
    code = CODE_OF_VERDICT[report.verdict]
    found: dict[str, Any] = report.as_json()
    text = [report.text()]
    if certificate is not None:
        codes = (code, CODE_OF_STATUS[certificate.status])
        code = 1 if 1 in codes else max(codes)
        found["certificate"] = {
            "path": None if path is None else str(path),
            "kind": certificate.kind,
            "modulo": certificate.modulo,
            "status": certificate.status,
            "lower_bound": certificate.lower_bound,
            "statement": certificate.statement,
            "reason": certificate.reason,
        }
        text.append(_told(certificate, path))
    if options.suggest:
        found["suggestion"], said = _suggestion(report, options)
        text.append(said)
    if options.picture is not None:
        drawn = _picture(options.picture, report)
        found["picture"] = str(drawn)
        text.append(f"picture: {drawn}")
    print(to_json(found) if options.json else "\n".join(text))
    return code


# What the library advises in Python, and the same on the command line.
_ADVICE = (
    (r"pass scale=(\S+), or none for the default", r"pass --scale \1, or none for the default"),
    (r"pass a scale such as (\S+)", r"pass --scale \1, or none for the default"),
    (r"pass (num_heads|num_particles)=\S+ or more", "pass --heads 64, or none for the default"),
    (r"pass head_dim=(\S+) or more", r"pass --head-dim \1, or none for full A"),
    (r", or a cloud such as law\.tokens\(.*\)", " (--queries shared:3), or a file of a cloud"),
    (r"pass a cloud such as law\.tokens\(.*\)", "pass a file of a cloud"),
    (r"allow more heads", "allow more: --heads 256"),
    (r"take fewer queries, or certify independence", r"\g<0>: --kind independence"),
    (r"take smaller heads A or queries x", "take smaller heads (--scale) or queries"),
    (r", an array \[K, d\], or one array \[K_i, d\] for each context", ", or a file of them"),
)


def _for_the_command_line(error: MeanfieldError) -> MeanfieldError:
    """The same error, its advice in flags."""
    expected, mend = error.expected, error.mend
    for python, flags in _ADVICE:
        expected, mend = re.sub(python, flags, expected), re.sub(python, flags, mend)
    return MeanfieldError(error.given, expected, mend)


def _check_options(options: NtkOptions) -> None:
    """Refuse what does not fit together, before any work."""
    if options.verify is not None:
        given = [
            f"--{field.name.replace('_', '-')}"
            for field in dataclasses.fields(options)
            if field.name not in ("contexts", "verify", "json")
            and getattr(options, field.name) != field.default
        ]
        given = [*options.contexts, *given]
        require(
            not given,
            f"--verify together with {', '.join(given)}",
            "--verify FILE alone",
            "a certificate holds its inputs: drop the rest",
        )
        return
    require(
        options.contexts,
        "no contexts",
        "a law or a file of tokens, at least one",
        "write meanfield ntk cube:radius=1,dim=2 cloud.npy",
    )
    require(
        0 <= options.seed < 2**63,
        f"--seed {options.seed}",
        "an integer from 0 to 2^63 - 1",
        "pass --seed 0",
    )
    for name, given, needed in (
        ("kind", options.kind, options.certify),
        ("out", options.out, options.certify),
        ("modulo", options.modulo, options.certify),
    ):
        require(
            given is None or needed,
            f"--{name} {given} without --certify",
            "a certificate to be made",
            f"add --certify or drop --{name}",
        )
    require(
        options.modulo is None or options.kind == "independence",
        f"--modulo {options.modulo} for a certificate of positivity",
        "a certificate of independence",
        "add --kind independence or drop --modulo",
    )
    require(
        not (options.certify and options.field == "perceptron"),
        "--certify with --field perceptron",
        "attention: nothing is proved of a perceptron's kernel",
        "drop --certify or --field",
    )
    require(
        not (options.certify and options.part == "A"),
        "--certify with --part A",
        "--part V, or full, for which a bound of the V-part is one as well",
        "drop --certify or change the part",
    )
    require(
        options.field == "attention" or not (options.suggest or options.head_dim),
        f"--field {options.field} with {'--suggest' if options.suggest else '--head-dim'}",
        "attention: these are flags of its heads",
        "drop one of the two",
    )
    for name, path, suffixes in (
        ("out", options.out, (".json",)),
        ("picture", options.picture, PICTURES),
    ):
        if path is not None:
            require(
                path.suffix in suffixes,
                f"--{name} {path}",
                f"a {' or '.join(suffixes)} file",
                f"pass --{name} FILE{suffixes[0]}",
            )
            require_writable(path)
    for number, text in enumerate(options.contexts, 1):
        require(
            not (_is_law(text) and options.field == "perceptron"),
            f"context {number}, {text!r}, with --field perceptron",
            "clouds: only attention's kernel is known in closed form for laws",
            "pass a file of a cloud",
        )


def _is_law(text: str) -> bool:
    """Whether a positional argument is a law; a file has to be there. Free of jax."""
    name, colon, _ = text.lower().partition(":")
    is_law = bool(colon) and (name == "gmm" or _suffix(text) not in SUFFIXES)
    require(
        is_law or _suffix(text) in SUFFIXES,
        f"{text!r} is no law and ends in no suffix of a cloud",
        "a law such as cube:radius=1,dim=2, or a .npy, .npz or .csv file",
        "see: meanfield ntk --help",
    )
    require(
        not is_law or name.strip() in LAWS,
        f"{text!r}: no law {name!r}",
        f"one of {', '.join(LAWS)}, as in cube:radius=1,dim=2",
        "see: meanfield ntk --help",
    )
    require(
        is_law or Path(text).exists(), f"{text} does not exist", "a cloud's file", "check the path"
    )
    return is_law


def _contexts(given: Sequence[str]) -> list[Any]:
    """Laws and clouds of the command line, the clouds of a batch one after another."""
    from meanfield.laws import parse_law
    from meanfield.measures import TokenMeasure

    contexts = []
    for text in given:
        if _is_law(text):
            contexts.append(parse_law(text))
            continue
        cloud = TokenMeasure.load(text)
        if cloud.num_contexts is None:
            contexts.append(cloud)
        else:
            both = zip(np.asarray(cloud.points), np.asarray(cloud.weights), strict=True)
            contexts += [_without_padding(*one) for one in both]
    return contexts


def _without_padding(points: np.ndarray, weights: np.ndarray) -> Any:
    """One context of a batch without what only fills it up: zero-mass repeats of earlier tokens."""
    from meanfield.measures import TokenMeasure

    _, first = np.unique(points, axis=0, return_index=True)
    keep = (weights > 0) | np.isin(np.arange(len(points)), first)
    return TokenMeasure.from_weights(points[keep], weights[keep])


def _suffix(text: str) -> str:
    return Path(text).suffix.lower()


def _queries(given: str, contexts: Sequence[Any]) -> Any:
    """The queries of the flag: a name, or the points of a file."""
    from meanfield.measures import TokenMeasure

    if _suffix(given) not in SUFFIXES:
        return given
    cloud = TokenMeasure.load(given)
    require(
        float(np.ptp(np.asarray(cloud.weights))) == 0,
        f"{given} holds unequal weights",
        "the points of queries alone, [K, d]",
        "drop the weights: queries carry no mass",
    )
    points = np.asarray(cloud.points)
    if points.ndim == 2:
        return points
    require(
        len(points) == len(contexts),
        f"{given} holds queries for {len(points)} contexts, and {len(contexts)} are given",
        "queries [K, d] that all share, or [N, K, d] with K of each context",
        "give as many, or one array [K, d]",
    )
    return list(points)


def _require_memory(pairs: Any, options: NtkOptions) -> None:
    """Refuse a factor F too large for a dense SVD: running out of memory would end the process."""
    from meanfield.ntk.report import default_num_heads

    dim, num_pairs = pairs.dim, pairs.num_pairs
    num_heads = options.heads or default_num_heads(pairs)
    is_scalar = options.part in (None, "V") and options.field == "attention"
    rows, columns = (1, num_pairs) if is_scalar else (2 * dim, num_pairs * dim)
    entries = num_heads * dim * rows * columns
    require(
        entries <= LARGEST_FACTOR and num_heads * dim**2 <= LARGEST_FACTOR,
        f"{num_pairs} pairs and {num_heads} heads in d = {dim}: {entries:.3g} numbers",
        f"at most {LARGEST_FACTOR:.3g}",
        "take fewer heads or queries; in Python, ntk.smallest_eigenvalue streams larger kernels",
    )
    require(
        columns <= LARGEST_SIDE,
        f"{columns} columns ({num_pairs} pairs in d = {dim})",
        f"at most {LARGEST_SIDE}",
        "take fewer queries; in Python, ntk.smallest_eigenvalue streams larger kernels",
    )


def _report(pairs: Any, options: NtkOptions) -> Any:
    """Numbers beside theory for drawn heads, or for the neurons of a perceptron."""
    from meanfield import ntk

    if options.field == "attention":
        return ntk.check(
            pairs,
            num_heads=options.heads,
            scale=options.scale,
            head_dim=options.head_dim,
            seed=options.seed,
            part=options.part or "V",
        )
    field, particles, scale = _neurons(pairs, options)
    report = ntk.check(pairs, part=options.part or "full", field=field, particles=particles)
    law = f"neurons u sigma(<w, x> + b): entries of u, b ~ N(0, 1), of w ~ N(0, {scale:.4g}^2)"
    heads = dataclasses.replace(report.heads, law=law, scale=scale)
    return dataclasses.replace(report, heads=heads)


def _neurons(pairs: Any, options: NtkOptions) -> tuple[Any, Any, float]:
    """Perceptron particles; w by default such that <w, x> is about 2."""
    import jax

    import meanfield as mf
    from meanfield.ntk.report import default_num_heads

    radius = float(np.sqrt((pairs.queries**2).sum(axis=1)).max())
    scale = options.scale if options.scale is not None else 2.0 / (radius or 1.0)
    num = default_num_heads(pairs) if options.heads is None else options.heads
    field, grid = mf.Perceptron(), mf.DepthGrid.uniform(1)
    law = mf.EntrywiseGaussian(u=1.0, w=scale, b=1.0)
    key = jax.random.key(options.seed)
    rho = mf.sample_parameters(field, law, grid, num, dim=pairs.dim, key=key)
    return field, jax.tree.map(lambda leaf: leaf[0], rho.particles), scale


def _certify(report: Any, options: NtkOptions) -> tuple[Any, Path | None]:
    """The certificate, and where it is kept; what is not certified is not kept."""
    from meanfield import ntk

    pairs, heads = report.pairs, report.heads
    if options.kind == "independence":
        certificate = ntk.certify(
            pairs, kind="independence", modulo=options.modulo or _modulo(pairs), seed=options.seed
        )
    else:
        certificate = ntk.certify(
            pairs,
            kind="positivity",
            heads=heads.particles,
            head_scale=heads.field.scale,
            seed=options.seed,
        )
    if certificate.status != "certified":
        return certificate, None
    path = options.out or free_folder(RESULTS / "ntk") / "certificate.json"
    certificate.save(path)
    return certificate, path


def _modulo(pairs: Any) -> Literal["affine", "constants", "quadratic"]:
    """Modulo what independence makes the kernel positive: docs/theory.md 3.2, i and ii."""
    if (pairs.queries == pairs.queries[0]).all():
        return "constants"
    return "affine" if all(law.has_bounded_support for law in pairs.laws) else "quadratic"


def _suggestion(report: Any, options: NtkOptions) -> tuple[dict[str, Any] | None, str]:
    """Scales and numbers of heads as JSON and as text; none where no heads can help."""
    from meanfield import ntk

    if report.prediction.nullity:
        return None, (
            f"no suggestion: theory predicts {report.prediction.nullity} null directions for"
            " every head scale and every number of heads"
        )
    suggestion = ntk.suggest(
        report.pairs, max_heads=options.heads, head_dim=options.head_dim, seed=options.seed
    )
    return suggestion.as_json(), suggestion.text()


def _proved(report: Any, certificate: Any) -> Any:
    """The report; what floats could not decide is decided by a proved bound of lambda_min."""
    if certificate is None or certificate.lower_bound is None or report.verdict != "undecided":
        return report
    reason = (
        f"it is proved in ball arithmetic that lambda_min >= {certificate.lower_bound!r}: this is"
        " the value that counts; nullity, spectrum and gap of float64 are below its resolution"
    )
    return dataclasses.replace(report, verdict="positive", reasons=[reason])


def _told(certificate: Any, path: Path | None) -> str:
    """The certificate in words."""
    if certificate.status == "certified":
        bound = certificate.lower_bound
        found = (
            "independent" if bound is None else f"lambda_min >= {bound!r}"
        )  # not rounded: a proof
        return (
            f"certified: {found} ({certificate.precision} bits): {certificate.statement}"
            f"\ncertificate: {path}"
        )
    return f"certificate {certificate.status} ({certificate.kind}): {certificate.reason}"


def _verify(path: Path, *, as_json: bool) -> int:
    """Check a stored certificate again."""
    import meanfield as mf
    from meanfield import ntk

    mf.use_double()
    stored = ntk.Certificate.load(path)
    result = ntk.verify(path)
    if as_json:
        found = {"path": str(path), "kind": stored.kind, "lower_bound": stored.lower_bound}
        print(to_json({**found, "holds": result.holds, "reason": result.reason}))
    else:
        print(f"{path}: {'holds' if result.holds else 'does not hold'}: {result.reason}")
    return 0 if result.holds else 1


def _picture(path: Path, report: Any) -> Path:
    """The spectrum with its error bars, and null directions over the pairs."""
    from meanfield import plotting

    spectrum, pairs = report.spectrum, report.pairs
    null, readable = spectrum.null_vectors, report.prediction and report.prediction.null_vectors
    if readable is not None and readable.shape == null.shape:
        null = readable  # the same space, in the basis that theory finds: few contexts in each
    part = {"full": "whole kernel"}.get(report.part, f"{report.part}-part")
    title = f"{part}, P = {pairs.num_pairs}, M = {report.heads.num_heads}, d = {pairs.dim}"
    figure, axes = plotting.new_figure(1, 2 if null.size else 1, aspect=0.8)
    with plotting.paper_style():
        ax = axes[0, 0]
        intervals = spectrum.intervals
        plotting.spectrum(
            ax,
            spectrum.eigenvalues,
            label="eigenvalues",
            interval=None if intervals is None else intervals.T,
            num_zero=spectrum.nullity,
            floor=max(spectrum.eigenvalues[max(spectrum.rank - 1, 0)] / 1e3, 1e-300),
            color=plotting.BLUE,
        )
        ax.set_ylabel("eigenvalue of $K$, 95% over heads")
        ax.legend(loc="upper right")
        if not null.size:
            ax.set_title(title)
        else:
            plotting.panel_label(ax, "a", title)
            contexts = np.repeat(pairs.index + 1, spectrum.copies)
            plotting.null_directions(axes[0, 1], null, contexts)
            is_null = report.verdict == "not positive"
            name = "null directions" if is_null else "below float64's resolution"
            plotting.panel_label(axes[0, 1], "b", name)
    return plotting.save_figure(figure, path, formats=(path.suffix[1:],))[0]
