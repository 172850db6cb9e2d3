"""What `import warpsmith` needs: the catalogue of operators and their registration with PyTorch."""
