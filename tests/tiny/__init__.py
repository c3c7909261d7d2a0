"""Tiny random models for the tests: targets and heads, the same bits on every machine."""
