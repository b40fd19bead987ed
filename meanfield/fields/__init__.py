"""Velocity fields: what moves tokens. One file per family; `combine` builds fields of fields."""

from meanfield.fields.attention import AttentionAV, AttentionQKV, SoftmaxAttention
from meanfield.fields.base import AbstractField, require_fitting, velocity, velocity_pullback
from meanfield.fields.combine import Causal, LayerNorm, SphereProjection, Sum
from meanfield.fields.perceptron import Perceptron, PerceptronParticle

__all__ = [
    "AbstractField",
    "AttentionAV",
    "AttentionQKV",
    "Causal",
    "LayerNorm",
    "Perceptron",
    "PerceptronParticle",
    "SoftmaxAttention",
    "SphereProjection",
    "Sum",
    "require_fitting",
    "velocity",
    "velocity_pullback",
]
