"""The neural tangent kernel of the flow: its factor F with K = F^T F."""

from meanfield.ntk.kernel import terminal_factor

__all__ = ["terminal_factor"]
