"""Inputs and float64 golden of the skinny matrix product C = A @ B."""

import numpy as np


def _uniform(rng, shape, low, high):
    x = rng.random(shape, dtype=np.float32)
    x *= np.float32(high - low)
    x += np.float32(low)
    return x


def _normal(rng, shape):
    return rng.standard_normal(shape, dtype=np.float32)


def make_inputs(rng, args, distribution):
    """a [M, K], b [K, N], both float32. No product of two inputs is small enough to be denormal."""
    rows, columns, depth = int(args["M"]), int(args["N"]), int(args["K"])
    if distribution == "normal":
        a, b = _normal(rng, (rows, depth)), _normal(rng, (depth, columns))
    elif distribution == "uniform":
        a, b = _uniform(rng, (rows, depth), -1, 1), _uniform(rng, (depth, columns), -1, 1)
    elif distribution == "shifted":
        # A positive mean: terms add up instead of cancelling, so every one that is left out shows.
        a, b = _uniform(rng, (rows, depth), 0.5, 1.5), _uniform(rng, (depth, columns), 0.5, 1.5)
    elif distribution == "heavy_tail":
        a, b = _normal(rng, (rows, depth)), _uniform(rng, (depth, columns), -1, 1)
        a *= np.square(a)
        b *= np.square(np.square(b))
        b *= np.float32(100)
    elif distribution == "outlier":
        a, b = _normal(rng, (rows, depth)), _uniform(rng, (depth, columns), -1, 1)
        a[rng.integers(rows), rng.integers(depth)] = 1.0e4
        b[rng.integers(depth), rng.integers(columns)] = -1.0e4
    elif distribution == "sparse_rows":
        # Half of the rows are zero, never the one picked here: stale sums of a neighbour would show.
        a, b = _normal(rng, (rows, depth)), _uniform(rng, (depth, columns), -1, 1)
        zero = rng.random(rows) < 0.5
        zero[rng.integers(rows)] = False
        a[zero] = 0.0
    elif distribution == "row_scales":
        # Each row of A and each row of B at its own power of two: beyond half precision, far from overflow.
        a, b = _normal(rng, (rows, depth)), _uniform(rng, (depth, columns), -1, 1)
        a *= np.exp2(rng.integers(-30, 31, size=(rows, 1))).astype(np.float32)
        b *= np.exp2(rng.integers(-10, 11, size=(depth, 1))).astype(np.float32)
    else:
        raise ValueError(f"unknown distribution {distribution!r}")
    return {"a": a, "b": b}


def reference(inputs, args):
    """c [M, N] in float64, and c.scale = |A| @ |B|: the size of what was summed, however much of it cancelled."""
    a, b = inputs["a"].astype(np.float64), inputs["b"].astype(np.float64)
    c = a @ b
    np.abs(a, out=a)
    np.abs(b, out=b)
    return {"c": c, "c.scale": a @ b}
