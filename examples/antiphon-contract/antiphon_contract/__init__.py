"""Prices by contract, and a reward term for keeping to the contract."""
