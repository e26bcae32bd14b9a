"""A model server without a model: it plays the scripted policies behind a real command-line agent.

It exists to test harness adapters and the scoring chain with known behaviour. It is not a model, and the
scores of its runs say nothing about one.
"""
