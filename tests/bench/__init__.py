"""`make bench`: speed and size as ratios against a floor or a peer measured in the same run."""
