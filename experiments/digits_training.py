"""Handwritten digits as token measures, fitted and classified by the conditional gradient flow.

Claim. An image is a measure (pixel = token, lifted position = point in R^d, intensity = mass) with
one zero-mass query token. The flow

    d mu/ds + div(mu Phi_rho[mu]) = 0,      Phi_rho[mu](x) = int V m_A[mu](x) drho(A, V | s),

carries the query to x_q(1), which is to be the anchor of the image's class:
``L(rho) = (1/N) sum_i |x_q^i(1) - anchor_i|^2 / 2``. From V = 0 the heads follow the conditional
Wasserstein gradient, ``d theta/dt = -G``. Three parts:

fit       20 images, adaptive step, float64, until the risk is 1e-3 of its start; it never rises.
          Beside it two predictions of the residual r = x_q(1) - anchor, ``dr/dt = -K r/N``:
          with the tangent kernel K at the start (lazy training), and with K(t) along the flow, the
          mean of two records between them: its error grows with their distance. They differ much:
          features move. That the frozen kernel misses is the negative control of the second claim.
classify  2,000 training and 1,000 test images, minibatches, float32: accuracy on the test images,
          beside three baselines that see the same data: nearest class mean of the lifted moments
          (mean and covariance of each measure), logistic regression on the pixels, and kernel
          ridge on the query features m_A[mu](x_q) of the heads at V = 0, regressed on the anchors
          (what these features can do frozen; ridge chosen by leave-one-out error in training).
curves    Smaller nets, all trained for the same time, over several seeds (split, heads,
          minibatches): test accuracy and test risk against the number of training images, of
          pixels n (by pooling), of heads M, of layers L; one is varied, the others stay at a base.
          Intervals are over seeds, differences paired. The heads are the same in all layers at the
          start, and M heads are the first of 2M, so that read-outs f_M of two widths can be
          compared image by image: if training propagates chaos, then (docs/theory.md 7.1)

              E |f_M - f_2M|^2 = sigma^2 (1/M - 1/2M),    slope -1/2 in M.

          In depth the gap of L and 2L layers is to fall (as 1/L once L is large). Accuracy need
          not rise at every doubling: with the number of steps fixed, more images are each seen
          less often. All seeds draw from one collection of 5,000 images, so that their test sets
          overlap by a tenth. Negative control: shuffled training labels leave the accuracy at
          chance, 1/10.

Reference: arXiv 2605.17660 for the flow; the task, the lift and the anchors are our choice
(docs/theory.md 3.1 for the kernel, 7.4 for the data).

Commands
    meanfield run digits_training                          four minutes on a CPU: the demo
    meanfield run digits_training --preset smoke --check   40 seconds
    meanfield run digits_training --preset paper --check   20 minutes
    meanfield figures digits_training digits_curves (figures/)
"""

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import meanfield as mf
from meanfield.data import (
    DigitSplit,
    class_anchors,
    default_query,
    digit_measures,
    load_digits,
    nearest_anchor,
)
from meanfield.ntk import terminal_factor

CLAIM = (
    "the flow fits 20 digits (preset paper: to 1e-3 of the start), classifies others; features move"
)
COST = "smoke 40 s, paper 20 min on a CPU core, 4 min as it stands; memory below 1 GB"
FIGURE = "digits_training"
HEADLINES = (
    "fit: steps tried until risk / initial risk is *",
    "classify: test accuracy (one net; interval over test images)",
    "curves, accuracy gained: most less fewest training images",
    "curves, read-outs of M and 2M heads: slope in M",
)

QUERY = 0  # the query token stands first
NUM_CLASSES, SIDES = 10, {"mnist": 28, "sklearn": 8}
RAREST = {"mnist": 500, "sklearn": 174}  # images of the digit that has fewest
FIELD, LOSS = mf.SoftmaxAttention("av"), mf.SquaredLoss()


@dataclass(frozen=True)
class Parameters:
    """The task, the heads, and the three parts; as it stands, what the demo runs."""

    source: Literal["mnist", "sklearn"] = "mnist"
    """Which digits."""
    pool: int = 2
    """Block size of mean pooling: 28 x 28 becomes 14 x 14."""
    most_tokens: int = 72
    """Brightest pixels of an image that count: padding to the few images with more is costly."""
    dim: int = 8
    """d, width of the lift."""
    num_cells: int = 4
    """L, layers (Euler)."""
    num_heads: int = 64
    """M, heads per layer."""
    score_scale: float = 2.0
    """Standard deviation of the entries of A; V starts at 0."""
    num_fit: int = 20
    """Images of the fit."""
    fit_steps: int = 160
    """Most attempts of the adaptive step."""
    fit_tolerance: float = 0.3
    """Relative error of a step that is accepted."""
    fit_target: float = 0.1
    """The risk ratio to be reached."""
    fit_record_every: int = 10
    """Attempts between records (and kernels)."""
    num_train: int = 500
    """Training images of the classification."""
    num_test: int = 500
    """Test images."""
    minibatch: int = 50
    """Images per step."""
    dt: float = 0.5
    """Step in training time, of the curves too."""
    num_steps: int = 120
    """Steps of the classification."""
    record_every: int = 20
    """Steps between accuracies."""
    expected_accuracy: float = 0.6
    """What the test accuracy must reach."""
    num_paths: int = 6
    """Test images whose token paths are stored."""
    curve_images: tuple[int, ...] = (20, 50, 100, 200)
    """Training images of the curves; the largest is the base's."""
    curve_pools: tuple[int, ...] = (14, 7, 4)
    """Pooling of the curves, coarse to fine."""
    curve_heads: tuple[int, ...] = (4, 8, 16, 32)
    """M of the curves, each twice the one before it."""
    curve_layers: tuple[int, ...] = (1, 2, 4)
    """L of the curves, each twice the one before it."""
    base_pool: int = 4
    """Pooling where something else is varied."""
    base_heads: int = 8
    """M where something else is varied."""
    base_layers: int = 2
    """L where something else is varied."""
    curve_seeds: int = 8
    """Splits and heads for each point of the curves."""
    curve_test: int = 200
    """Test images of the curves."""
    curve_minibatch: int = 10
    """Images per step of the curves."""
    curve_steps: int = 200
    """Steps of the curves."""
    expected_slope: float = -0.5
    """What theory says of the gap between M and 2M heads."""
    slope_tolerance: float = 0.15
    """Two-sided band around it."""
    accuracy_tolerance: float = 0.05
    """Two-sided band around equal accuracies, and around chance."""
    seed: int = 0
    """Names the split and the heads."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"dim": 2, "num_train": 2, "curve_seeds": 2},
            at_most={
                "minibatch": self.num_train,
                "curve_minibatch": min(self.curve_images, default=1),
                "seed": 2**63 - 1 - self.curve_seeds,
            },
            num_sizes=2,
        )
        side, images, pools = SIDES[self.source], self.curve_images, self.curve_pools
        finest = (side // min(self.pool, *pools)) ** 2
        divides, doubles = f"a divisor of the side {side}", "sizes, each twice the one before it"
        num, most = NUM_CLASSES, RAREST[self.source]
        left, curve_left = (num * (most - -(-n // num)) for n in (self.num_test, self.curve_test))
        together = f"at most {num * most} images of {self.source}, the test's included"
        for name, is_right, wanted in (
            ("pool", side % self.pool == 0, divides),
            ("curve_pools", not any(side % pool for pool in pools), divides),
            # ink covers less than a third of most images: with fewer pixels much of it is lost
            ("most_tokens", 3 * self.most_tokens >= finest, "a third of the finest image's pixels"),
            ("curve_images", list(images) == sorted(images), "from few to many"),
            ("curve_pools", list(pools) == sorted(pools, reverse=True), "from coarse to fine"),
            ("curve_heads", is_doubling(self.curve_heads, 4), f"at least 4 {doubles}"),
            ("curve_layers", is_doubling(self.curve_layers, 3), f"at least 3 {doubles}"),
            ("base_pool", self.base_pool in pools, "one of --curve-pools"),
            ("base_heads", self.base_heads in self.curve_heads, "one of --curve-heads"),
            ("base_layers", self.base_layers in self.curve_layers, "one of --curve-layers"),
            ("num_test", left > 0, together),
            ("curve_test", curve_left > 0, together),
            ("num_fit", self.num_fit <= left, together),
            ("num_train", self.num_train <= left, together),
            ("curve_images", max(images) <= curve_left, together),
        ):
            if not is_right:
                given = getattr(self, name)
                words = " ".join(map(str, given)) if isinstance(given, tuple) else given
                flag = f"--{name.replace('_', '-')} {words}"
                raise mf.MeanfieldError(flag, wanted, "correct it")


def is_doubling(sizes: tuple[int, ...], least: int) -> bool:
    """Whether there are enough, and each is twice the one before it."""
    steps = itertools.pairwise(sizes)
    return len(sizes) >= least and all(2 * few == many for few, many in steps)


def single(tree):
    """The same arrays in float32 (by numpy: no program to compile for each shape)."""
    kinds, arrays = {"f": np.float32}, jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, kinds.get(leaf.dtype.kind)), arrays)


def heads(parameters: Parameters) -> mf.ParameterMeasure:
    """A of the asked scale, V = 0: at the start nothing moves and K is its V-part."""
    return mf.sample_parameters(
        FIELD,
        mf.EntrywiseGaussian(A=parameters.score_scale, V=0.0),
        mf.DepthGrid.uniform(parameters.num_cells),
        parameters.num_heads,
        dim=parameters.dim,
        key=jax.random.key(parameters.seed),
    )


def brightest(images: np.ndarray, num: int) -> np.ndarray:
    """The same images without all but their ``num`` brightest pixels."""
    flat = images.reshape(len(images), -1).copy()
    faint = np.argsort(-flat, axis=1, kind="stable")[:, num:]
    np.put_along_axis(flat, faint, 0.0, axis=1)
    return flat.reshape(images.shape)


def digits(
    parameters: Parameters, num_train: int, *, num_test: int = 0, pool: int = 0, turn: int = 0
) -> DigitSplit:
    """Training and test images; the test set is the same whatever the size of the other."""
    split = load_digits(
        parameters.source,
        num_train=num_train,
        num_test=num_test or parameters.num_test,
        pool=pool or parameters.pool,
        seed=parameters.seed + turn,
    )
    train, test = (
        brightest(images, parameters.most_tokens)
        for images in (split.train_images, split.test_images)
    )
    return split._replace(train_images=train, test_images=test)


def tokens_of(*batches: np.ndarray) -> int:
    """n that fits all images, the query included."""
    return 1 + max(int((images > 0).sum(axis=(1, 2)).max()) for images in batches)


def task(
    images: np.ndarray, labels: np.ndarray, parameters: Parameters, num_tokens: int | None = None
) -> mf.Batch:
    """Images as contexts; only the query token counts, its target is the class's anchor."""
    contexts = digit_measures(images, parameters.dim, query_index="first", num_tokens=num_tokens)
    anchors = class_anchors(NUM_CLASSES, parameters.dim)
    targets = np.zeros(contexts.points.shape)
    targets[:, QUERY] = anchors[labels]
    loss_weights = np.zeros(targets.shape[:2])
    loss_weights[:, QUERY] = 1.0
    return mf.Batch(contexts, targets, loss_weights)


def accuracy(rho: mf.ParameterMeasure, batch: mf.Batch, labels: np.ndarray) -> float:
    """Share of images whose query ends nearest to its own anchor."""
    anchors = class_anchors(NUM_CLASSES, batch.contexts.dim)
    ends = mf.solve_flow(FIELD, rho, batch.contexts, keep="final").path[:, QUERY]
    return float(np.mean(nearest_anchor(ends, anchors) == labels))


def fit(parameters: Parameters, directory: mf.RunDirectory) -> dict[str, np.ndarray]:
    """The first run, with the two predictions of its risk."""
    split = digits(parameters, parameters.num_fit)
    batch = task(split.train_images, split.train_labels, parameters)

    def kernel(state: mf.TrainingState) -> np.ndarray:
        factor = np.asarray(terminal_factor(FIELD, state.rho, batch.contexts, tokens=(QUERY,)))
        return factor.T @ factor

    stepper = mf.AdaptiveStep(tolerance=parameters.fit_tolerance)
    state = mf.init_training(FIELD, heads(parameters), LOSS, batch, stepper=stepper)
    history = mf.run_training(
        state,
        parameters.fit_steps,
        record_every=parameters.fit_record_every,
        directory=directory,
        observers={"kernel": kernel},
        stop_risk=parameters.fit_target * float(state.value),
        label="fit",
    )
    start = np.asarray(batch.contexts.points[:, QUERY] - batch.targets[:, QUERY]).ravel()
    kernels = history.observed["kernel"] / parameters.num_fit
    residuals = {"frozen": [start], "along": [start]}
    for j, elapsed in enumerate(np.diff(history.time)):
        generators = {"frozen": kernels[0], "along": (kernels[j] + kernels[j + 1]) / 2}
        for name, generator in generators.items():
            step = scipy.linalg.expm(-elapsed * generator)
            residuals[name].append(step @ residuals[name][-1])
    predicted = {
        name: np.array([r @ r for r in rs]) / (2 * parameters.num_fit)
        for name, rs in residuals.items()
    }
    names = ("time", "step", "risk", "squared_norm", "dissipation_defect", "distance")
    spectra = np.linalg.eigvalsh(kernels[[0, -1]])
    return {n: getattr(history, n) for n in names} | predicted | {"spectra": spectra}


def baselines(parameters: Parameters) -> dict[str, float]:
    """Accuracies of three methods on the training and test images of the classification."""
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.neighbors import NearestCentroid

    split = digits(parameters, parameters.num_train)
    train = task(split.train_images, split.train_labels, parameters)
    test = task(split.test_images, split.test_labels, parameters)
    labels, wanted = split.train_labels, split.test_labels

    def moments(batch: mf.Batch) -> np.ndarray:
        upper = np.triu_indices(parameters.dim)
        mean, covariance = batch.contexts.mean(), batch.contexts.covariance()
        return np.concatenate([mean, np.asarray(covariance)[:, upper[0], upper[1]]], axis=1)

    nearest = NearestCentroid().fit(moments(train), labels)
    flat = [images.reshape(len(images), -1) for images in (split.train_images, split.test_images)]
    logistic = LogisticRegression(max_iter=1000).fit(flat[0], labels)

    particles = heads(parameters).particles
    scores = particles.A.reshape(-1, parameters.dim, parameters.dim)
    query = jnp.asarray(default_query(parameters.dim))

    def features(batch: mf.Batch) -> np.ndarray:
        """m_A[mu](x_q) of all heads, ``[N, L M d]``: the V-part of the kernel is their Gram."""

        def of_context(mu: mf.TokenMeasure) -> jax.Array:
            def one(score: jax.Array) -> jax.Array:
                return FIELD(mf.AttentionAV(score, jnp.eye(parameters.dim)), query, mu)[0]

            return jax.vmap(one)(scores).ravel()

        return np.asarray(jax.jit(lambda mus: jax.lax.map(of_context, mus))(batch.contexts))

    anchors = class_anchors(NUM_CLASSES, parameters.dim)
    ridge = RidgeCV(alphas=np.logspace(-6, 2, 17)).fit(features(train), anchors[labels])
    predicted = nearest_anchor(ridge.predict(features(test)), anchors)
    return {
        "nearest_class_mean": float(np.mean(nearest.predict(moments(test)) == wanted)),
        "logistic_regression": float(np.mean(logistic.predict(flat[1]) == wanted)),
        "kernel_ridge": float(np.mean(predicted == wanted)),
    }


def classify(parameters: Parameters, directory: mf.RunDirectory) -> dict[str, np.ndarray]:
    """The second run: its history and the paths of some test images."""
    split = digits(parameters, parameters.num_train)
    num_tokens = tokens_of(*split[::2])
    train = single(task(split.train_images, split.train_labels, parameters, num_tokens))
    test = single(task(split.test_images, split.test_labels, parameters, num_tokens))
    rho, key = single(heads(parameters)), jax.random.key(parameters.seed + 1)
    stepper, size = mf.EulerStep(parameters.dt), parameters.minibatch
    state = mf.init_training(FIELD, rho, LOSS, train, stepper=stepper, minibatch=size, key=key)
    history = mf.run_training(
        state,
        parameters.num_steps,
        record_every=parameters.record_every,
        directory=directory,
        observers={
            "train_accuracy": lambda s: accuracy(s.rho, train, split.train_labels),
            "test_accuracy": lambda s: accuracy(s.rho, test, split.test_labels),
        },
        label="classify",
    )
    some = jax.tree.map(lambda leaf: leaf[: parameters.num_paths], test.contexts)
    paths = np.asarray(mf.solve_flow(FIELD, history.state.rho, some).path)
    anchors = class_anchors(NUM_CLASSES, parameters.dim)
    names = ("time", "step", "risk", "distance")
    return {name: getattr(history, name) for name in names} | {
        **history.observed,
        "paths": paths,
        "weights": np.asarray(some.weights),
        "labels": split.test_labels[: parameters.num_paths],
        "predicted": nearest_anchor(paths[:, -1, QUERY], anchors),
        "anchors": anchors,
    }


class Lesson(NamedTuple):
    """One point of the learning curves."""

    images: int
    pool: int
    heads: int
    layers: int
    is_shuffled: bool = False

    def __str__(self) -> str:
        return ",".join(f"{name}={int(value)}" for name, value in self._asdict().items())


def lessons(parameters: Parameters) -> dict[str, list[Lesson]]:
    """The sweeps, the base and the control."""
    sizes = parameters.base_pool, parameters.base_heads, parameters.base_layers
    base = Lesson(max(parameters.curve_images), *sizes)
    return {
        "images": [base._replace(images=num) for num in parameters.curve_images],
        "pools": [base._replace(pool=pool) for pool in parameters.curve_pools],
        "heads": [base._replace(heads=num) for num in parameters.curve_heads],
        "layers": [base._replace(layers=num) for num in parameters.curve_layers],
        "base": [base],
        "control": [base._replace(is_shuffled=True)],
    }


@jax.jit
def learn(rho, batches, order, dt, tests):
    """Read-outs ``[R, T, d]`` of the test images after training, every seed in one program.

    All but ``dt`` have a leading axis of seeds; ``order`` are minibatches ``[R, steps, images]``.
    """

    def one(seed):
        rho, batch, order, tests = seed

        def step(theta, chosen):
            found = mf.conditional_gradient(
                FIELD, rho.with_particles(theta), LOSS, batch.take(chosen)
            )
            return jax.tree.map(lambda x, g: x - dt * g, theta, found.gradient), None

        theta, _ = jax.lax.scan(step, rho.particles, order)
        return mf.solve_flow(FIELD, rho.with_particles(theta), tests, keep="final").path[:, QUERY]

    return jax.lax.map(one, (rho, batches, order, tests))


def teach(parameters: Parameters, lesson: Lesson) -> dict[str, np.ndarray]:
    """Read-outs of all seeds and what they should be; mean number of tokens of an image.

    Every seed has its split, its heads (M heads are the first of the most, the same in all layers)
    and its minibatches; fewer images are a class-balanced part of more.
    """
    most, num_test = max(parameters.curve_images), parameters.curve_test
    splits = [
        digits(parameters, most, num_test=num_test, pool=lesson.pool, turn=turn)
        for turn in range(parameters.curve_seeds)
    ]
    num_tokens = tokens_of(*(images for split in splits for images in split[::2]))
    seeds = []
    for turn, split in enumerate(splits):
        rng = np.random.default_rng([parameters.seed, turn])
        noise = rng.random((parameters.curve_steps, lesson.images))
        shuffled = rng.permutation(split.train_labels)
        labels = shuffled if lesson.is_shuffled else split.train_labels
        rho = mf.sample_parameters(
            FIELD,
            mf.EntrywiseGaussian(A=parameters.score_scale, V=0.0),
            mf.DepthGrid.uniform(lesson.layers),
            max(parameters.curve_heads),
            dim=parameters.dim,
            key=jax.random.key(parameters.seed + turn),
            across_depth="constant",
        )
        first = jax.tree.map(lambda leaf: np.asarray(leaf)[:, : lesson.heads], rho.particles)
        rho = mf.ParameterMeasure(first, rho.grid)
        batch = task(split.train_images, labels, parameters, num_tokens)
        order = noise.argsort(axis=1)[:, : parameters.curve_minibatch]
        tests = task(split.test_images, split.test_labels, parameters, num_tokens).contexts
        seeds.append((rho, batch, order, tests))
    rho, batches, order, tests = single(jax.tree.map(lambda *leaves: np.stack(leaves), *seeds))
    return {
        "read_out": np.asarray(learn(rho, batches, order, np.float32(parameters.dt), tests)),
        "labels": np.stack([split.test_labels for split in splits]),
        "tokens": np.array(np.mean([(one.train_images > 0).sum(axis=(1, 2)) for one in splits])),
    }


def curves_of(parameters: Parameters, cells: dict[Lesson, dict]) -> dict[str, np.ndarray]:
    """Test accuracy and risk ``[R, K]`` along each sweep; gaps ``[R, K-1]`` of the read-outs."""
    anchors = class_anchors(NUM_CLASSES, parameters.dim)
    start = np.sum((default_query(parameters.dim) - anchors) ** 2, axis=-1)
    found: dict[str, np.ndarray] = {}
    for name, sweep in lessons(parameters).items():
        ends = np.stack([cells[lesson]["read_out"] for lesson in sweep], axis=1)  # [R, K, T, d]
        labels = np.stack([cells[lesson]["labels"] for lesson in sweep], axis=1)  # [R, K, T]
        told = nearest_anchor(ends.reshape(-1, parameters.dim), anchors).reshape(labels.shape)
        found[f"{name}_accuracy"] = (told == labels).mean(axis=-1)
        missed = np.sum((ends - anchors[labels]) ** 2, axis=-1)
        found[f"{name}_risk"] = missed.mean(axis=-1) / start[labels].mean(axis=-1)
        if name in ("heads", "layers"):
            squares = np.sum(np.diff(ends, axis=1) ** 2, axis=-1).mean(axis=-1)
            found[f"{name}_gap"] = np.sqrt(squares)
    side = SIDES[parameters.source]
    return found | {
        "images": np.array(parameters.curve_images),
        "pixels": (side // np.array(parameters.curve_pools)) ** 2,
        "heads": np.array(parameters.curve_heads),
        "layers": np.array(parameters.curve_layers),
        "tokens": np.array([float(cells[one]["tokens"]) for one in lessons(parameters)["pools"]]),
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Fit, classify, draw the learning curves: every part a cell."""
    mf.use_double()
    points = list(dict.fromkeys(lesson for some in lessons(parameters).values() for lesson in some))
    parts = {
        "baselines": lambda: baselines(parameters),
        "classify": lambda: classify(parameters, directory),
        "fit": lambda: fit(parameters, directory),
    }

    def compute(part):
        return teach(parameters, part) if isinstance(part, Lesson) else parts[part]()

    names = [*points, *parts]
    found = directory.sweep("part", names, compute, progress, key=str)
    cells = dict(zip(names, found, strict=True))
    fitted, classified = cells["fit"], cells["classify"]
    directory.save("fit", **fitted)
    directory.save("baselines", **cells["baselines"])
    shown = ("paths", "weights", "labels", "predicted", "anchors")
    directory.save("paths", **{name: classified[name] for name in shown})
    directory.save("classify", **{k: v for k, v in classified.items() if k not in shown})
    curves = curves_of(parameters, {lesson: cells[lesson] for lesson in points})
    directory.save("curves", **curves)

    ratio = fitted["risk"] / fitted["risk"][0]
    reached = float(classified["test_accuracy"][-1])
    spread = 1.96 * np.sqrt(reached * (1 - reached) / parameters.num_test)
    gaps = {name: log_gap(fitted[name], fitted["risk"]) for name in ("along", "frozen")}
    return [
        mf.Claim.bound(
            f"fit: steps tried until risk / initial risk is {parameters.fit_target:g}",
            "at most",
            parameters.fit_steps,
            fitted["step"][-1] if ratio[-1] <= parameters.fit_target else np.inf,
        ),
        mf.Claim.bound(
            "fit: largest rise of the risk (steps that raise it are refused)",
            "at most",
            0.0,
            float(np.diff(ratio).max()),
        ),
        mf.Claim.bound("fit: gap of log-risk, kernel along the flow", "below", 0.05, gaps["along"]),
        mf.Claim.bound("control: gap of log-risk, frozen kernel", "above", 0.2, gaps["frozen"]),
        mf.Claim(
            "classify: test accuracy (one net; interval over test images)",
            f"at least {parameters.expected_accuracy:g}",
            reached,
            (reached - spread, reached + spread),
            "consistent" if reached >= parameters.expected_accuracy else "inconsistent",
        ),
        *curve_claims(parameters, curves),
    ]


def curve_claims(parameters: Parameters, curves: dict[str, np.ndarray]) -> list[mf.Claim]:
    """What the learning curves say, and the control."""
    accuracies = {name: curves[f"{name}_accuracy"] for name in lessons(parameters)}
    gained = {name: values[:, -1] - values[:, 0] for name, values in accuracies.items()}
    rate = mf.fit_rate(parameters.curve_heads[:-1], curves["heads_gap"], min_sizes=3)
    falls = np.log2(curves["layers_gap"][:, 0] / curves["layers_gap"][:, -1])
    settled = accuracies["layers"][:, -1] - accuracies["layers"][:, -2]
    chance, band, shuffled = 1 / NUM_CLASSES, parameters.accuracy_tolerance, accuracies["control"]
    varied = {"images": "training images", "pools": "pixels", "heads": "heads"}
    words = "curves, accuracy gained: most less fewest"
    return [
        mf.Claim.above("curves, base: test accuracy", chance, accuracies["base"][:, 0]),
        *(mf.Claim.above(f"{words} {varied[name]}", 0.0, gained[name]) for name in varied),
        mf.Claim.mean("curves, accuracy: most layers less half as many", 0.0, settled, band),
        mf.Claim(
            "curves, read-outs of M and 2M heads: slope in M",
            parameters.expected_slope,
            rate.slope,
            rate.interval,
            rate.verdict(parameters.expected_slope, parameters.slope_tolerance),
        ),
        mf.Claim.above("curves, read-outs of L and 2L layers: log2(first gap / last)", 0.0, falls),
        mf.Claim.mean(
            "control (shuffled training labels): test accuracy", chance, shuffled[:, 0], band
        ),
    ]


def log_gap(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Largest ``|log predicted - log measured|`` of the risk, as a share of its whole log decay."""
    logs = np.log(predicted) - np.log(measured)
    return float(np.abs(logs).max() / np.log(measured[0] / measured[-1]))


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
