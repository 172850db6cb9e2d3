"""What Triton twins of several families share."""
