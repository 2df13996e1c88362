"""Pictures of samples: `rtf.show`."""
