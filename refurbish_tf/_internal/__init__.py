"""What the rooms of the package share, and no user imports."""
