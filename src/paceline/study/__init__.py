"""A matrix of runs from one file: what is missing is run, what is done is kept."""
