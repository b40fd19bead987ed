"""meanfield: a numerical mean-field simulator for infinitely deep, infinitely wide transformers.

The map of the rooms, from the ground up; a room imports only from rooms above it in this list:

    measures     TokenMeasure, DepthGrid, ParameterMeasure: what every other room moves
    laws         analytic token laws with their cumulant generating functions and samplers
    fields       velocity fields: softmax attention, perceptron, sums, projections, causality
    objectives   terminal losses, loss weights, batches of (context, target)
    transport    Wasserstein, conditional Wasserstein, coupled and energy distances
    flow         depth schemes and the forward continuity equation
    rates        log-log rates with bootstrap intervals                          (free of jax)
    records      run directories: arrays, manifest, checkpoint, resume           (free of jax)
    data         digits and the user's own files as token clouds
    adjoint      discrete and continuous adjoint, the conditional Wasserstein gradient
    exact        closed-form solutions that the solvers are measured against
    training     the conditional gradient flow in training time
    ntk          the tangent kernel as a factor
    models       an ordinary multi-head stack trained by optax, as a particle limit
    plotting     paper style and drawing primitives                              (free of jax)

Every public name below is imported on first use (PEP 562), so that ``import meanfield.records``,
``meanfield.rates`` and ``meanfield.plotting`` work where no solver is installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meanfield._checks import DomainError, MeanfieldError, NonFiniteError, check_parameters
    from meanfield._runtime import use_double
    from meanfield.adjoint import (
        ContinuousAdjoint,
        DiscreteAdjoint,
        GradientSolution,
        conditional_gradient,
        risk,
    )
    from meanfield.fields import (
        AbstractField,
        AttentionAV,
        AttentionQKV,
        Causal,
        LayerNorm,
        Perceptron,
        PerceptronParticle,
        SoftmaxAttention,
        SphereProjection,
        Sum,
        velocity,
    )
    from meanfield.flow import Adaptive, Euler, FlowSolution, Heun, RungeKutta4, solve_flow
    from meanfield.laws import (
        AbstractLaw,
        AffineImage,
        Convolution,
        Cube,
        Empirical,
        EntrywiseGaussian,
        Gaussian,
        GaussianMixture,
        Laplace,
        Product,
        parse_law,
        two_component_mixture,
    )
    from meanfield.measures import (
        DepthGrid,
        ParameterMeasure,
        TokenMeasure,
        refine_depth,
        sample_parameters,
        stack_contexts,
        subsample,
    )
    from meanfield.objectives import Batch, PointwiseLoss, SquaredLoss
    from meanfield.rates import Rate, fit_rate, richardson, self_convergence_order
    from meanfield.records import Claim, RunDirectory, load_checkpoint, save_checkpoint
    from meanfield.training import (
        AdaptiveStep,
        EulerStep,
        History,
        TrainingInfo,
        TrainingState,
        init_training,
        run_training,
        training_step,
    )
    from meanfield.transport import (
        conditional_wasserstein2,
        coupled_distance,
        energy_distance,
        labelled_distance,
        wasserstein2,
    )

__version__ = "0.1.0"

__all__ = [
    "AbstractField",
    "AbstractLaw",
    "Adaptive",
    "AdaptiveStep",
    "AffineImage",
    "AttentionAV",
    "AttentionQKV",
    "Batch",
    "Causal",
    "Claim",
    "ContinuousAdjoint",
    "Convolution",
    "Cube",
    "DepthGrid",
    "DiscreteAdjoint",
    "DomainError",
    "Empirical",
    "EntrywiseGaussian",
    "Euler",
    "EulerStep",
    "FlowSolution",
    "Gaussian",
    "GaussianMixture",
    "GradientSolution",
    "Heun",
    "History",
    "Laplace",
    "LayerNorm",
    "MeanfieldError",
    "NonFiniteError",
    "ParameterMeasure",
    "Perceptron",
    "PerceptronParticle",
    "PointwiseLoss",
    "Product",
    "Rate",
    "RungeKutta4",
    "RunDirectory",
    "SoftmaxAttention",
    "SphereProjection",
    "SquaredLoss",
    "Sum",
    "TokenMeasure",
    "TrainingInfo",
    "TrainingState",
    "check_parameters",
    "conditional_gradient",
    "conditional_wasserstein2",
    "coupled_distance",
    "energy_distance",
    "fit_rate",
    "init_training",
    "labelled_distance",
    "load_checkpoint",
    "parse_law",
    "refine_depth",
    "richardson",
    "risk",
    "run_training",
    "sample_parameters",
    "save_checkpoint",
    "self_convergence_order",
    "solve_flow",
    "stack_contexts",
    "subsample",
    "training_step",
    "two_component_mixture",
    "use_double",
    "velocity",
    "wasserstein2",
]

# Where each name lives; tests/workflow checks it against the imports above.
_NAMES_OF_ROOM = {
    "_checks": "DomainError MeanfieldError NonFiniteError check_parameters",
    "_runtime": "use_double",
    "measures": "DepthGrid ParameterMeasure TokenMeasure refine_depth sample_parameters "
    "stack_contexts subsample",
    "laws": "AbstractLaw AffineImage Convolution Cube Empirical EntrywiseGaussian Gaussian "
    "GaussianMixture Laplace Product parse_law two_component_mixture",
    "fields": "AbstractField AttentionAV AttentionQKV Causal LayerNorm Perceptron "
    "PerceptronParticle SoftmaxAttention SphereProjection Sum velocity",
    "objectives": "Batch PointwiseLoss SquaredLoss",
    "transport": "conditional_wasserstein2 coupled_distance energy_distance labelled_distance "
    "wasserstein2",
    "flow": "Adaptive Euler FlowSolution Heun RungeKutta4 solve_flow",
    "rates": "Rate fit_rate richardson self_convergence_order",
    "records": "Claim RunDirectory load_checkpoint save_checkpoint",
    "data": "",
    "adjoint": "ContinuousAdjoint DiscreteAdjoint GradientSolution conditional_gradient risk",
    "exact": "",
    "training": "AdaptiveStep EulerStep History TrainingInfo TrainingState init_training "
    "run_training training_step",
    "ntk": "",
    "models": "",
    "plotting": "",
}
_ROOM_OF_NAME = {name: room for room, names in _NAMES_OF_ROOM.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name, or a room itself, the first time it is asked for."""
    if name in _ROOM_OF_NAME:
        room = importlib.import_module(f"meanfield.{_ROOM_OF_NAME[name]}")
        value = globals()[name] = getattr(room, name)
        return value
    if name in _NAMES_OF_ROOM:
        return importlib.import_module(f"meanfield.{name}")
    raise AttributeError(f"module 'meanfield' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names and the rooms, imported or not."""
    return sorted({*globals(), *__all__, *(r for r in _NAMES_OF_ROOM if not r.startswith("_"))})
