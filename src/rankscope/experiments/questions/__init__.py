"""Questions about one network and its input, one file each."""
