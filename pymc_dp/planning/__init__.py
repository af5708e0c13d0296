"""Choosing a release before there is any outcome: costs, their drivers, ways to spend a budget."""
