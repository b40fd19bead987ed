"""Finite-width models written the ordinary way, and the particle limits that they belong to."""

from meanfield.models.fit import Fit, fit, squared_loss
from meanfield.models.transformer import Transformer

__all__ = ["Fit", "Transformer", "fit", "squared_loss"]
