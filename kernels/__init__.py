"""The trusted harness and, a folder each, the kernels that ferret works on."""
