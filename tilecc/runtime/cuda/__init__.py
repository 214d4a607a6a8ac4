"""Running on NVIDIA GPUs through the driver's C interface, and what is built for them."""
