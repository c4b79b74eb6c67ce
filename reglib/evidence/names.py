"""What data sets and networks are called in figures and tables."""

NAMES = {
    "mnist5k": "MNIST (5,000)",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "cifar10-jpeg",
    "imagenette320": "Imagenette-320",
    "lenet5": "LeNet-5",
    "resnet": "ResNet",
}


def name_of(key: object) -> str:
    """Return the name of a data set or network as figures show it."""
    return NAMES.get(str(key), str(key))
