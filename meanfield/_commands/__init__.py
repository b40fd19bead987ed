"""The commands behind ``meanfield``: one module each, jax imported only where it is needed."""
