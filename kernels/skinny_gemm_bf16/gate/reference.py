"""Inputs and float64 golden of the skinny matrix product C = A @ W^T in bfloat16."""

import ml_dtypes
import numpy as np

BLOCK = 1024  # rows of W that are widened to float64 at a time
SUMS = 1 / 256  # how much of |A| @ |W|^T is added to the scale


def make_inputs(rng, args, distribution):
    """a [M, K], w [N, K], both bfloat16. No product of two inputs is small enough to be denormal."""
    rows, columns, depth = int(args["M"]), int(args["N"]), int(args["K"])
    a = rng.standard_normal((rows, depth), dtype=np.float32)
    # Uniform, from integers: a normal draw of a hundred megabytes takes seconds.
    w = rng.integers(-(2**15), 2**15, size=(columns, depth), dtype=np.int16).astype(np.float32)
    w += np.float32(0.5)
    w *= np.float32(2.0**-15)
    if distribution == "normal":
        pass
    elif distribution == "shifted":
        # A positive mean: terms add up instead of cancelling, so every one that is left out shows.
        np.abs(a, out=a)
        np.abs(w, out=w)
    elif distribution == "row_scales":
        # Each row at its own power of two: beyond half precision, far from overflow.
        a *= np.exp2(rng.integers(-30, 31, size=(rows, 1))).astype(np.float32)
        w *= np.exp2(rng.integers(-30, 31, size=(columns, 1))).astype(np.float32)
    elif distribution == "outlier":
        a[rng.integers(rows), rng.integers(depth)] = 1.0e4
        w[rng.integers(columns), rng.integers(depth)] = -1.0e4
    elif distribution == "sparse_rows":
        # Half of the rows of A are zero, never the one picked here: stale sums of a neighbour would show.
        zero = rng.random(rows) < 0.5
        zero[rng.integers(rows)] = False
        a[zero] = 0.0
    else:
        raise ValueError(f"unknown distribution {distribution!r}")
    return {"a": a.astype(ml_dtypes.bfloat16), "w": w.astype(ml_dtypes.bfloat16)}


def reference(inputs, args):
    """c [M, N] in float64, and c.scale = |c| + |A| @ |W|^T / 256."""
    a, w = inputs["a"].astype(np.float64), inputs["w"]
    size = np.abs(a)
    c = np.empty((a.shape[0], w.shape[0]))
    scale = np.empty_like(c)
    for begin in range(0, w.shape[0], BLOCK):
        block = w[begin : begin + BLOCK].astype(np.float64)
        c[:, begin : begin + BLOCK] = a @ block.T
        scale[:, begin : begin + BLOCK] = size @ np.abs(block, out=block).T
    scale *= SUMS
    scale += np.abs(c)
    return {"c": c, "c.scale": scale}
