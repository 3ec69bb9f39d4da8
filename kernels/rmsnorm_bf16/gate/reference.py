"""Inputs and float64 golden of RMSNorm in bfloat16: y = x * rstd * g, rstd = 1 / sqrt(mean(x^2) + eps)."""

import ml_dtypes
import numpy as np


def make_inputs(rng, args, distribution):
    """x [M, N], g [N], both bfloat16. The gain is never near 0 or 1, so y is neither x nor x * rstd."""
    rows, columns = int(args["M"]), int(args["N"])
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    if distribution == "normal":
        pass
    elif distribution == "shifted":
        # A mean far from 0: a layer norm, which subtracts it, is not an RMS norm.
        x += np.float32(3)
    elif distribution == "row_scales":
        # Each row at its own power of two, from far below sqrt(eps) to far above it: rstd differs between all rows.
        x *= np.exp2(rng.integers(-20, 21, size=(rows, 1))).astype(np.float32)
    elif distribution == "tiny":
        # mean(x^2) is about eps: a kernel that leaves eps out is wrong by tens of percent.
        x *= np.float32(1.0e-3)
    elif distribution == "heavy_tail":
        x *= np.square(x)
    elif distribution == "outlier":
        # One value of one row: who looks at the first rows, or sums in half precision, goes wrong there.
        x[rng.integers(rows), rng.integers(columns)] = 1.0e3
    elif distribution == "zero_rows":
        # Half of the rows are zero: y is exactly 0 there.
        x[rng.random(rows) < 0.5] = 0.0
        x[rng.integers(rows)] = 0.0
    else:
        raise ValueError(f"unknown distribution {distribution!r}")
    g = rng.random(columns, dtype=np.float32) + np.float32(1.25)
    g *= rng.choice(np.array([-1, 1], dtype=np.float32), size=columns)
    return {"x": x.astype(ml_dtypes.bfloat16), "g": g.astype(ml_dtypes.bfloat16)}


def reference(inputs, args):
    """y [M, N] in float64 with its own size as the scale: no element is excused by a larger one."""
    x, g = inputs["x"].astype(np.float64), inputs["g"].astype(np.float64)
    # The kernel is given eps as a float32.
    rstd = 1.0 / np.sqrt(np.einsum("mn,mn->m", x, x) / x.shape[1] + np.float64(np.float32(args["eps"])))
    x *= rstd[:, None]
    x *= g
    return {"y": x, "y.scale": np.abs(x)}
