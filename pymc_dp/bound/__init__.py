"""Prices that hold for all data although sigma_u is estimated."""
