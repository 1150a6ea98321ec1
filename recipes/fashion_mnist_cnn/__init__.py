"""A recipe: a small convolutional network on Fashion-MNIST."""
