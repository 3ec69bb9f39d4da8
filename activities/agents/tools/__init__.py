"""What the models can do: a tool a class, each with its input, its description and its bounded answer."""
