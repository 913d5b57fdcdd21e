"""Classifiers to start from: the paper's Wide ResNet, CIFAR ResNet-20, a small CNN and an MLP."""
