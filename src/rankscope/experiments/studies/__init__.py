"""Questions that many networks answer, one file each."""
