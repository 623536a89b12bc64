"""The organizer's changes of a run while it goes on: made here, brought to its nodes, and seen in a record."""
