"""How a gradient changes the parameters, one file an update."""
