"""What everybody in a run agreed on: the manifest, the chain of records, and who signed what."""
