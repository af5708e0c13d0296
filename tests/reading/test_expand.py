"""Linear operations are read as they are, written out where they hold a graph; no others."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from factories.linear_models import same
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import Assert
from pytensor.scan.utils import until
from pytensor.tensor.pad import pad

from pymc_dp.reading.expand import MOST_STEPS
from pymc_dp.reading.read import read_model
from pymc_dp.reading.symbolic import NotLinearGaussianError

M = 4
RNG = np.random.default_rng(19)
C = RNG.normal(size=(M, M))
COUNTS = np.array([2, 0, 1, 3])


def kron(a, b):
    return (getattr(pt.linalg, "kron", None) or pt.slinalg.kron)(a, b)


def block_diag(*matrices):
    return (getattr(pt.linalg, "block_diag", None) or pt.slinalg.block_diag)(*matrices)


def function(body):
    """The body as one operation, of two arguments of which one is a constant."""
    u, c = (pt.TensorType("float64", (M,))(name) for name in "uc")
    return OpFromGraph([u, c], [body(u, c)])


def looped(step, *, steps=None, sequences=None, start=None, **options):
    """``scan``, without the updates that older versions return beside the values."""
    found = pytensor.scan(step, sequences=sequences, outputs_info=start, n_steps=steps, **options)
    with_updates = isinstance(found, tuple | list) and isinstance(found[-1], dict)
    return found[0] if with_updates else found


def autoregression(u):
    return looped(lambda e, x: 0.5 * x + e, sequences=u, start=pt.zeros(()))


def second_order(u):
    """Two earlier values enter, and the loop starts from two latents."""
    start = {"initial": u[:2], "taps": [-1, -2]}
    return looped(lambda a, b: 0.7 * a - 0.2 * b, steps=5, start=start)


def whole_vectors(u):
    """The state is the vector itself, beside an output that is no state; a matrix goes in."""
    states, sums = looped(
        lambda x, c: (pt.dot(c, x), x.sum()), steps=3, start=[u, None], non_sequences=[C]
    )
    return pt.concatenate([states.ravel(), sums])


LINEAR = {
    "repeat": lambda u: pt.repeat(u, COUNTS),
    "repeat along an axis": lambda u: pt.repeat(u[:, None] * C, COUNTS, axis=0).sum(axis=1),
    "diagonal matrix": lambda u: (pt.diag(u) @ C).ravel(),
    "off-diagonal matrix": lambda u: pt.diag(u, k=1).sum(axis=0),
    "einsum": lambda u: pt.einsum("ij,j->i", C, u),
    "einsum of three": lambda u: pt.einsum("ij,jk,k->i", C, C, u),
    "einsum, outer": lambda u: pt.einsum("i,j->ij", C[0], u).ravel(),
    "pad with zeros": lambda u: pad(u, (1, 2)),
    "pad with the edge": lambda u: pad(u, 2, mode="edge"),
    "pad around": lambda u: pad(u, 2, mode="wrap"),
    "pad with the mean": lambda u: pad(u, 1, mode="mean"),
    "kron": lambda u: kron(pt.as_tensor(C[:2]), u[:, None]).ravel(),
    "block diagonal": lambda u: block_diag(pt.as_tensor(C), u.reshape((2, 2))) @ np.ones(6),
    "real": lambda u: pt.real(u),
    "assertion": lambda u: Assert("finite")(u, pt.all(pt.as_tensor(C) < 9)),
    "convolution": lambda u: pt.signal.convolve1d(u, np.array([0.5, 0.3, 0.2])),
    "function": lambda u: function(lambda v, c: v * c + v.sum())(u, pt.as_tensor(C[0])),
    "function in a function": lambda u: function(
        lambda v, c: function(lambda w, d: w + d)(2 * v, c)
    )(u, pt.as_tensor(C[0])),
    "loop": autoregression,
    "loop with two lags": second_order,
    "loop over vectors": whole_vectors,
    "loop without a state": lambda u: looped(lambda a, b: a - 2 * b, sequences=[u, 2 * u]),
}
NEIGHBOURS = {
    "repeat as often as a latent says": lambda u: pt.repeat(u, pt.cast(u > 0, "int64")).sum(),
    "diagonal matrix times the vector": lambda u: pt.diag(u) @ u,
    "einsum of a vector with itself": lambda u: pt.einsum("i,i->i", u, u),
    "einsum of exponentials": lambda u: pt.einsum("ij,j->i", C, pt.exp(u)),
    "pad with the maximum": lambda u: pad(u, 2, mode="maximum"),
    "kron with itself": lambda u: kron(u[:, None], u[:, None]).ravel(),
    "block diagonal times itself": lambda u: block_diag(u[:, None], u[:, None]) @ u[:2],
    "real part of a square root": lambda u: pt.real(pt.sqrt(u)),
    "real part of a complex square": lambda u: pt.real(pt.cast(u, "complex128") ** 2),
    "assertion about a latent": lambda u: Assert("small")(u, pt.all(u < 9)),
    "convolution with itself": lambda u: pt.signal.convolve1d(u, u),
    "function with a product": lambda u: function(lambda v, c: v * v * c)(u, pt.as_tensor(C[0])),
    "function whose other input is no constant": lambda u: function(lambda v, c: v * c)(u, u),
    "loop with a product": lambda u: looped(lambda e, x: x * e, sequences=u, start=pt.ones(())),
    "loop with a jump": lambda u: looped(
        lambda e, x: x + pt.sign(e), sequences=u, start=pt.zeros(())
    ),
    "loop as long as a latent says": lambda u: looped(
        lambda x: x + 1.0, steps=pt.cast(u[0] > 0, "int64") + 1, start=u[0]
    )[-1],
    "loop that ends by a latent": lambda u: looped(
        lambda x: (x + 1.0, until(x > 3)), steps=9, start=u[0]
    )[-1],
    "loop that is too long": lambda u: looped(
        lambda x: 0.9 * x, steps=MOST_STEPS + 1, start=u[0]
    ),
}  # fmt: skip
# Its gradient of a fill by one value has that value's shape wrong.
OLD = pytensor.__version__ < "3"
pytestmark = [
    pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning"),
    # Of the compiled functions that results are compared with.
    pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning"),
]


def modelled(body):
    """Standard normal effects; the observed values are around a function of them."""
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, 1.0, shape=M)
        theta = pm.Deterministic("theta", pt.atleast_1d(body(u)))
        size = theta.shape.eval()
        pm.Normal("y", theta, 0.5, observed=pm.Data("direct", RNG.normal(size=size)))
    return model


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operations_are_read_as_the_matrix_that_they_are(name):
    """Against columns that PyTensor computes, compiled, from unit vectors."""
    u = pt.TensorType("float64", (M,))("u")
    compiled = pytensor.function([u], pt.atleast_1d(LINEAR[name](u)))
    origin = compiled(np.zeros(M))
    J = np.column_stack([compiled(e) - origin for e in np.eye(M)])
    model = modelled(LINEAR[name])
    if name == "pad with the edge" and OLD:
        with pytest.raises(ValueError, match=r"PyTensor cannot evaluate .*\(\d,\)\); write what"):
            read_model(model)
        return
    linear = read_model(model).linear
    # Rounding of the differences above; entries are of order one.
    same(linear.target.toarray(), J, rtol=1e-12)
    same(linear.constant, origin, rtol=1e-12)
    same(linear.precision.toarray(), np.eye(M) + 4 * J.T @ J, rtol=1e-12)
    same(linear.cross.toarray(), 4 * J.T, rtol=1e-12)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_their_neighbours_that_are_not_linear_are_refused(name):
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, 1.0, shape=M)
        pm.Normal("y", u, 0.5, observed=pm.Data("direct", RNG.normal(size=M)))
        pm.Deterministic("theta", NEIGHBOURS[name](u))
    with pytest.raises(NotLinearGaussianError, match=r"target 'theta' is not proven .* of u"):
        read_model(model)


class Shifty(OpFromGraph):
    """An operation that computes something else than its inner graph says."""

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.abs(inputs[0])


def test_an_operation_that_is_not_its_inner_graph_is_not_written_out():
    u = pt.TensorType("float64", (M,))("u")
    with pytest.raises(NotLinearGaussianError, match="Shifty of u"):
        read_model(modelled(lambda v: Shifty([u], [2 * u])(v)))


def test_an_assertion_of_constants_that_fails_is_a_refusal():
    with pytest.raises(ValueError, match="'y' has no density: it needs finite, which fails"):
        read_model(modelled(lambda u: Assert("finite")(u, pt.all(pt.as_tensor(C) > 9))))
