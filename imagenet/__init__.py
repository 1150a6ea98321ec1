"""The ImageNet reference: any torchvision classifier on an ImageFolder tree."""
