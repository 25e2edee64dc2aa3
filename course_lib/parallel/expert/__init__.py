"""Expert parallel: every rank holds some of the experts, and tokens travel to the experts they chose and back."""
