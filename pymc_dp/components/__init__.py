"""Variance components: estimated from the answers, what that costs, and privately."""
