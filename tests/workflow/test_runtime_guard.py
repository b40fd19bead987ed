import jax
import jaxlib
import numpy as np
import pytest

import meanfield as mf
from meanfield import _runtime
from tests import helpers
from tests.workflow.command_line import ROOT, call, process


@pytest.fixture
def fresh_guard():
    _runtime.guard_runtime.cache_clear()
    yield
    _runtime.guard_runtime.cache_clear()


def small_solve():
    field = mf.SoftmaxAttention("av")
    particles = mf.AttentionAV(jax.numpy.zeros((1, 1, 2, 2)), jax.numpy.zeros((1, 1, 2, 2)))
    rho = mf.ParameterMeasure(particles, mf.DepthGrid.uniform(1))
    return mf.solve_flow(field, rho, mf.TokenMeasure(np.eye(2)))


@pytest.mark.parametrize("package", [jax, jaxlib])
def test_first_solve_refuses_a_known_bad_version(package, monkeypatch, fresh_guard):
    small_solve()
    _runtime.guard_runtime.cache_clear()
    monkeypatch.setattr(package, "__version__", "0.10.2")
    with pytest.raises(mf.MeanfieldError, match=r"0\.10\.2.*pip install 'jax>=0\.10,!=0\.10\.2"):
        small_solve()


def test_doctor_names_the_mend(monkeypatch, fresh_guard):
    monkeypatch.setattr(jaxlib, "__version__", "0.11.1")
    code, out, _ = call("doctor")
    assert code == 2
    assert "mend       jaxlib 0.11.1" in out
    assert "pip install 'jax>=0.10,!=0.10.2,!=0.11.*'" in out


def test_doctor_finds_this_installation_well(fresh_guard):
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    for word in ("versions", "devices", "precision", "XLA check", "memory", "all is well"):
        assert word in out


# jax 0.10.2 goes wrong from n = 16385 on: by 0.98 there, by a factor of thousands at 32769.
AS_USERS_COMPILE = """
import meanfield
from meanfield import _runtime
meanfield.use_double()
for num_points in (1000, 16384, 16385, 20000, 32769, 40000):
    assert _runtime.compiled_kernel_error(num_points) < 1e-12, num_points
print("all equal")
"""


def test_compiled_kernel_equals_numpy(here):
    """With the compiler's own flags, not those of tests/conftest.py."""
    done = process("-c", AS_USERS_COMPILE, cwd=here, XLA_FLAGS="")
    assert (done.returncode, done.stdout) == (0, "all equal\n"), done.stderr


def test_stored_references_hold_as_users_compile(here):
    """The golden files once more, by the programs that users run."""
    file = ROOT / "tests" / "consistency" / "test_golden.py"
    given = " ".join(f"--{name}={value}" for name, value in helpers.AS_USERS_COMPILE.items())
    done = process("-m", "pytest", "-q", "-p", "no:cacheprovider", file, cwd=ROOT, XLA_FLAGS=given)
    assert done.returncode == 0, done.stdout


def test_control_a_wrong_compiler_is_noticed(monkeypatch, fresh_guard):
    def miscompile(function):
        return lambda x: jax.vmap(lambda one: (one**2).sum())(x)

    monkeypatch.setattr(jax, "jit", miscompile)
    assert _runtime.compiled_kernel_error() > 0.1
    code, out, _ = call("doctor")
    assert code == 2
    assert "WRONG" in out
