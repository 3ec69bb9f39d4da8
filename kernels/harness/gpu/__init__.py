"""Judging and timing on a CUDA device: memory that the gate owns, executors that replay recorded launches."""
