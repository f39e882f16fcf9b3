"""What the plug-ins for serving engines have in common: tables of checkpoints in the place of an engine's own."""
