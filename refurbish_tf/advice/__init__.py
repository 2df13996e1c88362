"""What to do about a slow input pipeline: `rtf.advise`."""
