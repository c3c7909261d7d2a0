"""Mutated model files and argument sets, for scripts/fuzz_files.py and tests/test_fuzz.py."""
