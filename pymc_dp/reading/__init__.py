"""Reading a PyMC model: proof that it is linear-Gaussian, and its numbers."""
