"""Products of whole matrices: main loops for the tensor cores, and what finishes a tile."""
