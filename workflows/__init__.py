"""The deterministic story of a run: nothing here does I/O."""
