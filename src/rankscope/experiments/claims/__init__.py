"""The papers' claims and our own, one file each."""
