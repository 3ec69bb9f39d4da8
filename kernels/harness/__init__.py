"""The trusted measuring code: builds, judges and times kernels. Knows nothing of Temporal or of any model."""
