"""Building the libraries, and what the compiler made of the kernels."""
