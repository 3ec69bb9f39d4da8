"""One stage of the pipeline a file; every side effect of a run happens in here."""
