"""ResNet for CIFAR-10."""
