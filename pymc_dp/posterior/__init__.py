"""Exact Gaussian posteriors, in factors and in sparse form."""
