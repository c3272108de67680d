"""Files, interruptions, threads and versions: what any program needs, whatever it computes."""
