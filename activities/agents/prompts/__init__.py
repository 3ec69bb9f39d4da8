"""What the models are told: pure functions of plain values, so that every word of it can be looked at and tested."""
