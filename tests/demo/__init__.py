"""`make demo`: the whole path on real input, from this machine's facts to a running container."""
