"""Handwritten digits as token measures, fitted and classified by the conditional gradient flow.

Claim. An image is a measure (pixel = token, lifted position = point in R^d, intensity = mass) with
one zero-mass query token. The flow

    d mu/ds + div(mu Phi_rho[mu]) = 0,      Phi_rho[mu](x) = int V m_A[mu](x) drho(A, V | s),

carries the query to x_q(1), which is to be the anchor of the image's class:
``L(rho) = (1/N) sum_i |x_q^i(1) - anchor_i|^2 / 2``. From V = 0 the heads follow the conditional
Wasserstein gradient, ``d theta/dt = -G``. Two runs:

fit       20 images, adaptive step, float64: the risk never rises and falls below 1e-3 of its start.
          Beside it two predictions of the residual r = x_q(1) - anchor, ``dr/dt = -K r/N``:
          with the tangent kernel K at the start (lazy training), and with K(t) along the flow
          (exact up to the time step). They differ much: features move. That the frozen kernel
          misses is the negative control of the second claim.
classify  2,000 training and 1,000 test images, minibatches, float32: accuracy on the test images,
          beside three baselines that see the same data: nearest class mean of the lifted moments
          (mean and covariance of each measure), logistic regression on the pixels, and kernel
          ridge on the query features m_A[mu](x_q) of the heads at V = 0, regressed on the anchors
          (what these features can do frozen; ridge chosen by leave-one-out error in training).

Reference: the flow is that of arXiv 2605.17660; the task, the lift and the anchors are our choice
(docs/theory.md 3.1 for the kernel, 7.4 for the data).

Commands
    meanfield run digits_training --preset smoke           four minutes on a CPU
    meanfield run digits_training --preset paper --check   twenty minutes
    meanfield figures digits_training

Stored: ``fit`` (time, step, risk, squared_norm, dissipation_defect, distance, frozen, along),
``classify`` (time, step, risk, train_accuracy, test_accuracy), ``baselines`` (one accuracy each),
``paths`` (paths [K, L+1, n, d] of some test images, weights, labels, predicted, anchors).
Figure: figures/digits_training.py.
"""

from dataclasses import dataclass
from typing import Literal

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

CLAIM = "the flow fits 20 digits (paper: below 1e-3 of the start), classifies others; features move"
COST = "smoke 4 min, paper 20 min on a CPU core; memory below 1 GB"
FIGURE = "digits_training"

QUERY = 0  # the query token stands first
FIELD = mf.SoftmaxAttention("av")


@dataclass(frozen=True)
class Parameters:
    """The task, the heads, and the two runs."""

    source: Literal["mnist", "sklearn"] = "mnist"
    """Which digits."""
    pool: int = 2
    """Block size of mean pooling: 28 x 28 becomes 14 x 14."""
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
    fit_steps: int = 1000
    """Most attempts of the adaptive step."""
    fit_tolerance: float = 0.3
    """Relative error of a step that is accepted."""
    fit_target: float = 1e-3
    """The risk ratio to be reached."""
    fit_record_every: int = 10
    """Attempts between records (and kernels)."""
    num_train: int = 2000
    """Training images of the classification."""
    num_test: int = 1000
    """Test images."""
    minibatch: int = 50
    """Images per step."""
    dt: float = 0.5
    """Step in training time."""
    num_steps: int = 600
    """Steps of the classification."""
    record_every: int = 100
    """Steps between accuracies."""
    expected_accuracy: float = 0.8
    """What the test accuracy must reach."""
    num_paths: int = 6
    """Test images whose token paths are stored."""
    seed: int = 0
    """Names the split and the heads."""

    def __post_init__(self) -> None:
        mf.check_parameters(
            self,
            at_least={"dim": 2},
            at_most={"minibatch": self.num_train, "seed": 2**63 - 2},
        )
        side = {"mnist": 28, "sklearn": 8}[self.source]
        if side % self.pool:
            raise mf.MeanfieldError(
                f"--pool {self.pool} for images of side {side}", "a divisor", "pass --pool 2"
            )


def single(tree):
    """The same arrays in float32."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


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


def digits(parameters: Parameters, num_train: int) -> DigitSplit:
    """Training and test images; the test set is the same whatever the size of the other."""
    return load_digits(
        parameters.source,
        num_train=num_train,
        num_test=parameters.num_test,
        pool=parameters.pool,
        seed=parameters.seed,
    )


def task(images: np.ndarray, labels: np.ndarray, parameters: Parameters) -> mf.Batch:
    """Images as contexts; only the query token counts, its target is the class's anchor."""
    contexts = digit_measures(images, parameters.dim, query_index="first")
    anchors = class_anchors(10, parameters.dim)
    targets = np.zeros(contexts.points.shape)
    targets[:, QUERY] = anchors[labels]
    loss_weights = np.zeros(targets.shape[:2])
    loss_weights[:, QUERY] = 1.0
    return mf.Batch(contexts, targets, loss_weights)


def read_out(rho: mf.ParameterMeasure, contexts: mf.TokenMeasure) -> np.ndarray:
    """Final positions of the query tokens, ``[N, d]``."""
    return np.asarray(mf.solve_flow(FIELD, rho, contexts, keep="final").path[:, QUERY])


def accuracy(rho: mf.ParameterMeasure, batch: mf.Batch, labels: np.ndarray) -> float:
    """Share of images whose query ends nearest to its own anchor."""
    anchors = class_anchors(10, batch.contexts.dim)
    return float(np.mean(nearest_anchor(read_out(rho, batch.contexts), anchors) == labels))


def fit(parameters: Parameters, directory: mf.RunDirectory) -> dict[str, np.ndarray]:
    """The first run, with the two predictions of its risk."""
    split = digits(parameters, parameters.num_fit)
    batch = task(split.train_images, split.train_labels, parameters)

    def kernel(state: mf.TrainingState) -> np.ndarray:
        factor = np.asarray(terminal_factor(FIELD, state.rho, batch.contexts, tokens=(QUERY,)))
        return factor.T @ factor

    state = mf.init_training(
        FIELD,
        heads(parameters),
        mf.SquaredLoss(),
        batch,
        stepper=mf.AdaptiveStep(tolerance=parameters.fit_tolerance),
    )
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


def baselines(
    split: DigitSplit, train: mf.Batch, test: mf.Batch, parameters: Parameters
) -> dict[str, float]:
    """Accuracies of three methods on the same training and test images."""
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.neighbors import NearestCentroid

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

    anchors = class_anchors(10, parameters.dim)
    ridge = RidgeCV(alphas=np.logspace(-6, 2, 17)).fit(features(train), anchors[labels])
    predicted = nearest_anchor(ridge.predict(features(test)), anchors)
    return {
        "nearest_class_mean": float(np.mean(nearest.predict(moments(test)) == wanted)),
        "logistic_regression": float(np.mean(logistic.predict(flat[1]) == wanted)),
        "kernel_ridge": float(np.mean(predicted == wanted)),
    }


def run(parameters: Parameters, directory: mf.RunDirectory, progress) -> list[mf.Claim]:
    """Fit, then classify; store both, the baselines and some paths."""
    mf.use_double()
    fitted = directory.cached("fit", lambda: fit(parameters, directory))
    directory.save("fit", **fitted)
    ratio = fitted["risk"] / fitted["risk"][0]
    progress.note(f"fit: risk ratio {ratio[-1]:.2e} at training time {fitted['time'][-1]:.1f}")

    split = digits(parameters, parameters.num_train)
    train = task(split.train_images, split.train_labels, parameters)
    test = task(split.test_images, split.test_labels, parameters)
    rivals = directory.cached("baselines", lambda: baselines(split, train, test, parameters))
    directory.save("baselines", **rivals)
    progress.note("baselines: " + ", ".join(f"{k} {float(v):.3f}" for k, v in rivals.items()))

    train, test = single(train), single(test)
    state = mf.init_training(
        FIELD,
        single(heads(parameters)),
        mf.SquaredLoss(),
        train,
        stepper=mf.EulerStep(parameters.dt),
        minibatch=parameters.minibatch,
        key=jax.random.key(parameters.seed + 1),
    )
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
    directory.save(
        "classify",
        time=history.time,
        step=history.step,
        risk=history.risk,
        distance=history.distance,
        **history.observed,
    )
    some = jax.tree.map(lambda leaf: leaf[: parameters.num_paths], test.contexts)
    paths = mf.solve_flow(FIELD, history.state.rho, some).path
    anchors = class_anchors(10, parameters.dim)
    directory.save(
        "paths",
        paths=paths,
        weights=some.weights,
        labels=split.test_labels[: parameters.num_paths],
        predicted=nearest_anchor(paths[:, -1, QUERY], anchors),
        anchors=anchors,
    )

    reached = float(history.observed["test_accuracy"][-1])
    spread = 1.96 * np.sqrt(reached * (1 - reached) / parameters.num_test)
    gaps = {name: log_gap(fitted[name], fitted["risk"]) for name in ("along", "frozen")}
    return [
        mf.Claim.bound("fit: final risk / initial risk", "below", parameters.fit_target, ratio[-1]),
        mf.Claim.bound(
            "fit: largest rise of the risk", "at most", 0.0, float(np.diff(ratio).max())
        ),
        mf.Claim.bound("fit: gap of log-risk, kernel along the flow", "below", 0.1, gaps["along"]),
        mf.Claim.bound("control: gap of log-risk, frozen kernel", "above", 0.2, gaps["frozen"]),
        mf.Claim(
            "classify: test accuracy",
            f"at least {parameters.expected_accuracy:g}",
            reached,
            (reached - spread, reached + spread),
            "consistent" if reached >= parameters.expected_accuracy else "inconsistent",
        ),
    ]


def log_gap(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Largest ``|log predicted - log measured|`` of the risk, as a share of its whole log decay."""
    logs = np.log(predicted) - np.log(measured)
    return float(np.abs(logs).max() / np.log(measured[0] / measured[-1]))


if __name__ == "__main__":
    from meanfield.__main__ import run_file

    run_file(__file__)
