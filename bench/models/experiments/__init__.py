"""What is measured."""
