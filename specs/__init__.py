"""The task language and the outcome types: what ferret is asked and what it may answer."""
