"""What `split` is made of."""
