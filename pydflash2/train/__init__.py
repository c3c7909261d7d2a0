"""Trains a head for a target, on texts that the target itself has written. Needs the extra `train`."""
